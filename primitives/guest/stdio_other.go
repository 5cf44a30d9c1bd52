//go:build !unix

package guest

import "os"

// pollable returns f as it is; guests run on Unix.
func pollable(f *os.File) (*os.File, error) { return f, nil }
