//go:build unix

package guest

import (
	"fmt"
	"os"
	"syscall"
)

// pollable returns f as a file whose Close unblocks reads. Files that cannot be polled stay
// unchanged: a read of them does not block for long.
func pollable(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return f, nil
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(int(f.Fd()))
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	// Set it after the call of Fd, which makes the file blocking again.
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("make %s non-blocking: %w", f.Name(), err)
	}
	// The original would keep the pipe open for the other end.
	if err := f.Close(); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
