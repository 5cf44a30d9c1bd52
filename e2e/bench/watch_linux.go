package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// benchWatch measures how soon a change is reported, and how soon the watch of a large tree is
// live.
func benchWatch(ctx context.Context) (rows []row, err error) {
	err = withLocal(ctx, func(p primitives.EnvironmentPrimitive) error {
		base, ours, err := watchAgainstRaw(ctx, p)
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("local watch, p50", "raw inotify", "us", lower, micros(base), micros(ours), 1.15))
		tree := filepath.Join(p.Paths().Workspace, "tree")
		if err := makeTree(tree, 10_000); err != nil {
			return err
		}
		base, ours, err = interleave(5,
			func() error { return rawWatchTree(tree) },
			func() error { return watchTree(ctx, p, "tree") })
		rows = append(rows, ratioRow("local watch of 10,000 folders", "walk and inotify add", "ms", lower, millis(base), millis(ours), 1.1))
		return err
	})
	return rows, err
}

// watchTree returns when the watch is live.
func watchTree(ctx context.Context, p primitives.EnvironmentPrimitive, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := p.Watch(ctx, dir, primitives.WatchOptions{})
	if err != nil {
		return err
	}
	cancel()
	for _, err := range events {
		return err
	}
	return nil
}

// watchAgainstRaw measures the time from the write of one byte to its event.
func watchAgainstRaw(ctx context.Context, p primitives.EnvironmentPrimitive) (base, ours time.Duration, err error) {
	dir := filepath.Join(p.Paths().Workspace, "watched")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, 0, err
	}
	raw, err := newRawWatch(filepath.Join(dir, "raw"))
	if err != nil {
		return 0, 0, err
	}
	defer raw.close()
	own, err := newOwnWatch(ctx, p, p.Paths().Workspace, "watched/ours")
	if err != nil {
		return 0, 0, err
	}
	defer own.close()
	return interleave(2000, raw.change, own.change)
}

// watched is a file that is changed; news receives its events.
type watched struct {
	file  *os.File
	news  chan error
	close func()
}

func newWatched(dir string) (*watched, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	return &watched{file: f, news: make(chan error)}, err
}

func (w *watched) change() error {
	if _, err := w.file.Write([]byte("x")); err != nil {
		return err
	}
	return <-w.news
}

// newRawWatch waits for events with a plain read.
func newRawWatch(dir string) (*watched, error) {
	w, err := newWatched(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY); err != nil {
		return nil, err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			_, err := unix.Read(fd, buf)
			select {
			case w.news <- err:
			case <-stop:
				return
			}
		}
	}()
	w.close = func() {
		close(stop)
		_, _ = w.file.Write([]byte("x")) // wakes the reader
		<-done
		_ = errors.Join(w.file.Close(), unix.Close(fd))
	}
	return w, nil
}

// newOwnWatch watches a folder of the workspace, which is a folder of this machine.
func newOwnWatch(ctx context.Context, p primitives.EnvironmentPrimitive, workspace, dir string) (*watched, error) {
	w, err := newWatched(filepath.Join(workspace, dir))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	events, err := p.Watch(ctx, dir, primitives.WatchOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev, err := range events {
			if err == nil && ev.Op != primitives.OpModify {
				err = fmt.Errorf("%s instead of a modification", ev.Op)
			}
			select {
			case w.news <- err:
			case <-ctx.Done():
				return
			}
		}
	}()
	w.close = func() {
		cancel()
		<-done
		_ = w.file.Close()
	}
	return w, nil
}

// makeTree creates n folders, 100 in each parent.
func makeTree(dir string, n int) error {
	for i := range n {
		if err := os.MkdirAll(filepath.Join(dir, fmt.Sprintf("d%03d/e%03d", i/100, i%100)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func rawWatchTree(dir string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, err = unix.InotifyAddWatch(fd, name, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_DELETE|unix.IN_MOVE)
		return err
	})
	return errors.Join(err, unix.Close(fd))
}
