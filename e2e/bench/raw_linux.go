package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// rawPipe reads what a command writes directly into a pipe of the given size.
func rawPipe(ctx context.Context, size int64, pipe int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipe); err != nil {
		return errors.Join(fmt.Errorf("pipe of %d bytes: %w", pipe, err), w.Close())
	}
	args := flood(size)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	n, err := discard(r)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d arrived", n, size)
	}
	return errors.Join(err, cmd.Wait())
}

// forkTrue starts the cheapest program and waits for it: no way to run a command takes less.
func forkTrue() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	fd := null.Fd()
	pid, err := syscall.ForkExec(trueCommand.Args[0], trueCommand.Args, &syscall.ProcAttr{Files: []uintptr{fd, fd, fd}})
	if err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err = unix.Wait4(pid, &status, 0, nil); err == nil && status != 0 {
		err = fmt.Errorf("/bin/true ended with %#x", int(status))
	}
	return err
}

// filesAgainstRaw takes the minimum of several rounds in fresh folders, because a file system is
// slow after deleting thousands of files.
func filesAgainstRaw(ctx context.Context, p primitives.EnvironmentPrimitive) (base, ours float64, err error) {
	round := 0
	workspace := p.Paths().Workspace
	b, o, err := fastest(8,
		func() error {
			round++
			return rawFiles(filepath.Join(workspace, fmt.Sprintf("raw%d", round)))
		},
		func() error {
			round++
			return writeBatch(ctx, p, fmt.Sprintf("ours%d", round))
		})
	return millis(b), millis(o), err
}

// rawFiles makes the minimal system calls of atomic writes.
func rawFiles(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range batch(dir) {
		fd, err := unix.Open(f.Path+"~", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		_, err = unix.Write(fd, f.Content)
		if err := errors.Join(err, unix.Close(fd), unix.Rename(f.Path+"~", f.Path)); err != nil {
			return err
		}
	}
	return nil
}
