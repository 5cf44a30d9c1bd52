//go:build !linux

package testmodal

import "context"

// watch needs Linux.
func (t tools) watch(context.Context, watchRequest) error {
	return &toolsError{Kind: "NotSupported", Message: "Watching needs Linux"}
}
