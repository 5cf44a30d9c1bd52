package main

import (
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// input is a standard input whose Close ends a waiting Read; closing the file itself would not. It
// leaves the file's flags unchanged, because other processes may share the file.
type input struct {
	file  *os.File
	wakeR *os.File
	wakeW *os.File
	once  sync.Once
}

func newInput(f *os.File) (*input, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &input{file: f, wakeR: r, wakeW: w}, nil
}

// Read waits until it can read something or until Close.
func (in *input) Read(p []byte) (int, error) {
	fds := []unix.PollFd{
		{Fd: int32(in.file.Fd()), Events: unix.POLLIN},
		{Fd: int32(in.wakeR.Fd()), Events: unix.POLLIN},
	}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return 0, io.ErrClosedPipe
		default:
			return in.file.Read(p)
		}
	}
}

// Close ends a waiting Read and all later ones. The file stays open.
func (in *input) Close() error {
	var err error
	in.once.Do(func() { err = in.wakeW.Close() })
	return err
}
