package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// rawPipe reads what a command writes into a pipe of the given size, with
// nothing in between.
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

// filesAgainstRaw takes the minimum of several rounds in fresh folders: a file
// system that has just deleted thousands of files is slow for everybody.
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

// rawFiles does with system calls what an atomic write has to do at least.
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
