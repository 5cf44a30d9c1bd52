//go:build !linux

package files

import "errors"

// locate is for guests, which are on Linux.
func locate(int, []string) (string, error) { return "", errors.ErrUnsupported }
