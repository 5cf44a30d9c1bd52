// Package unshared is a sandbox of one's own: a guest in its own process, IPC and host
// name namespaces, as unshare(1) of util-linux makes them. It shows all that a backend
// needs, which is a guest.Driver: start "envrunner guest" where the sandbox is, join its
// standard streams with guest.Stdio, and answer what only the backend can know.
// [environment.New] takes the sandbox.
package unshared

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// New makes a sandbox in a new folder below root. This program's end is its end, too.
func New(ctx context.Context, root string) (*guest.Sandbox, error) {
	runner, err := bundle.Path(ctx, bundle.Config{}) // the program that works inside
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(root, "unshared-")
	if err != nil {
		return nil, err
	}
	d := &driver{dir: dir, runner: runner}
	s, err := guest.Open(ctx, d, guest.Config{
		Backend: "unshared", Isolation: primitives.IsolationNone, // it can read what its user can
	})
	if err != nil {
		return nil, errors.Join(err, d.End(ctx))
	}
	return s, nil
}

// driver is one guest in namespaces.
type driver struct {
	dir, runner string
	cmd         *exec.Cmd
	exited      chan struct{}
}

func (d *driver) ID() string { return filepath.Base(d.dir) }

// Dial starts the guest. It ends with this program.
func (d *driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	args := []string{"--pid", "--mount-proc", "--ipc", "--uts", "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	life := context.WithoutCancel(ctx) // ctx covers the creation only
	cmd := exec.CommandContext(life, "unshare", append(args, d.runner, "guest", "--root", d.dir)...)
	cmd.Stderr = os.Stderr
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), theirIn.Close())
	}
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	err = errors.Join(cmd.Start(), theirIn.Close(), theirOut.Close())
	stream := guest.Stdio(out, in)
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	d.cmd, d.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(d.exited)
	}()
	return stream, nil
}

// State says whether the guest runs; without it, nothing of the sandbox does.
func (d *driver) State(context.Context) (guest.Status, error) {
	select {
	case <-d.exited:
		return guest.Status{State: primitives.State{Status: primitives.StatusLost}}, nil
	default:
		return guest.Status{State: primitives.State{Status: primitives.StatusRunning}}, nil
	}
}

// End returns when nothing of the sandbox is left.
func (d *driver) End(context.Context) error {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill() // fails only if it has exited
		<-d.exited
	}
	return os.RemoveAll(d.dir)
}

// Close ends the sandbox, too, because no other program can attach to it.
func (d *driver) Close() error { return d.End(context.Background()) }
