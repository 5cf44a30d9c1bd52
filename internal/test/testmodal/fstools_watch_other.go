//go:build !linux

package testmodal

// watch needs Linux.
func (t tools) watch(watchRequest) error {
	return &toolsError{Kind: "NotSupported", Message: "Watching needs Linux"}
}
