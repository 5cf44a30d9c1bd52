// Package unshared is a sandbox of one's own: a guest in its own process, IPC and host
// name namespaces, as unshare(1) of util-linux makes them. It shows all that a backend
// needs: start "envrunner guest" where the sandbox is, join its standard streams with
// guest.Stdio, and answer what only the backend can know. [environment.New] takes it.
package unshared

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// Sandbox is a guest in namespaces. Files, commands and watches are the Client's.
type Sandbox struct {
	*guest.Client
	dir    string
	kill   func() error
	exited chan struct{}

	mu    sync.Mutex
	ended bool
}

// New makes a sandbox in a new folder below root. This program's end is its end, too.
func New(ctx context.Context, root string) (*Sandbox, error) {
	runner, err := bundle.Path(ctx, bundle.Config{}) // the program that works inside
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(root, "unshared-")
	if err != nil {
		return nil, err
	}
	s := &Sandbox{dir: dir, exited: make(chan struct{})}
	var stderr bytes.Buffer
	life := context.WithoutCancel(ctx) // ctx covers the creation only
	args := []string{"--pid", "--mount-proc", "--ipc", "--uts", "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	cmd := exec.CommandContext(life, "unshare", append(args, runner, "guest", "--root", dir)...)
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.kill = cmd.Process.Kill
	if s.Client, err = guest.Dial(ctx, guest.Stdio(out, in), guest.Config{
		Backend: "unshared", Isolation: primitives.IsolationNone, // it can read what its user can
	}); err != nil {
		err = errors.Join(err, cmd.Process.Kill(), cmd.Wait(), os.RemoveAll(dir))
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	go func() {
		<-s.Done() // all that the guest has said was read
		_ = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// Terminate ends all processes of the sandbox and removes its folder.
func (s *Sandbox) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return primitives.TerminateReport{}, nil
	}
	report, err := s.Client.Terminate(ctx)
	if errors.Is(err, primitives.ErrUnavailable) {
		err = nil // the guest is dead, and with it all processes of its namespace
	}
	return report, errors.Join(err, s.endLocked())
}

// Close ends the sandbox, too, because no other program can attach to it.
func (s *Sandbox) Close() error {
	err := s.Client.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.endLocked())
}

// endLocked returns when nothing of the sandbox is left.
func (s *Sandbox) endLocked() error {
	s.ended = true
	_ = s.kill() // fails only if it has exited
	<-s.exited
	return os.RemoveAll(s.dir)
}
