package docker_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// patience is how long a test waits before it takes an operation for hung. Terminate alone needs
// nearly 20 seconds to detect a silent engine.
const patience = time.Minute

// underway holds one running operation of every kind in a sandbox.
type underway struct {
	proc    primitives.Process
	out     io.ReadCloser // a file that is being read
	results map[string]chan error
	// politely says that the sandbox had a grace period to end its commands.
	politely bool
}

// ended reports whether a status says that the sandbox ended the command.
func (u *underway) ended(s primitives.ExitStatus) bool {
	return s.Reason == primitives.ReasonLost || u.politely && s.Reason == primitives.ReasonCancelled
}

// startAll starts one operation of each kind. All of them run when it returns.
func startAll(t *testing.T, s *guest.Sandbox) *underway {
	t.Helper()
	return startAllPolitely(t, s, false)
}

func startAllPolitely(t *testing.T, s *guest.Sandbox, politely bool) *underway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	u := &underway{results: map[string]chan error{}, politely: politely}
	var err error
	if u.proc, err = s.Exec(ctx, primitives.Command{Args: []string{"sh", "-c", "echo ready; exec sleep 1000"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(u.proc.Stdout(), make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	// More than the buffers in between hold.
	if err := s.WriteFile(ctx, "big", io.LimitReader(zeros{}, 16<<20), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if u.out, err = s.Open(ctx, "big"); err == nil {
		_, err = io.ReadFull(u.out, make([]byte, 1000))
	}
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Watch(ctx, ".", primitives.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.do("watch", func() error { return lastError(events) })
	u.do("run", func() error {
		res, err := s.Run(ctx, primitives.Command{Args: []string{"sh", "-c", "echo x >started; sleep 1000"}}, primitives.RunOptions{})
		if err == nil && u.ended(res.Status) {
			err = primitives.ErrUnavailable // equivalent
		}
		return err
	})
	source, feed := io.Pipe()
	u.do("write", func() error {
		err := s.WriteFile(ctx, "half", source, primitives.WriteOptions{})
		return errors.Join(err, source.Close())
	})
	go func() { // until the reader is closed
		for err := error(nil); err == nil; {
			_, err = feed.Write(make([]byte, 1<<10))
		}
	}()
	for { // until Run has started its command
		if _, err := s.Stat(ctx, "started"); err == nil {
			return u
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func (u *underway) do(name string, f func() error) {
	result := make(chan error, 1)
	u.results[name] = result
	go func() { result <- f() }()
}

func lastError(events iter.Seq2[primitives.WatchEvent, error]) error {
	var last error
	for _, err := range events {
		last = err
	}
	return last
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// expectUnavailable waits until all operations have ended, and expects that every error says that
// the sandbox no longer exists.
func (u *underway) expectUnavailable(t *testing.T, s *guest.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check := func(what string, err error) {
		t.Helper()
		if _, typed := errors.AsType[*primitives.Error](err); !errors.Is(err, primitives.ErrUnavailable) || !typed && what != "run" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, result := range u.results {
		select {
		case err := <-result:
			check(name, err)
		case <-ctx.Done():
			t.Fatalf("%s hangs", name)
		}
	}
	if status, err := u.proc.Wait(ctx); err != nil {
		check("wait", err)
	} else if !u.ended(status) {
		t.Errorf("wait: %+v", status)
	}
	_, err := io.Copy(io.Discard, u.out)
	check("read", err)
	if err := u.out.Close(); err != nil {
		t.Errorf("closing the reader: %v", err)
	}
	// While the container lives, the end of the command is unknown.
	if err := u.proc.Close(); err != nil {
		check("closing the process", err)
	}
	_, err = s.Stat(ctx, ".")
	check("stat afterwards", err)
	_, err = s.Exec(ctx, primitives.Command{Args: []string{"true"}})
	check("exec afterwards", err)
}
