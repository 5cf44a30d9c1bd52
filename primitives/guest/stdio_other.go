//go:build !unix

package guest

import "os"

// pollable returns f unchanged; guests run on Unix.
func pollable(f *os.File) (*os.File, error) { return f, nil }
