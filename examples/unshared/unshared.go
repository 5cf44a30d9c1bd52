// Package unshared is an example backend: a guest in its own process, IPC and host name
// namespaces, as unshare(1) of util-linux creates them. It shows all that a backend needs, which
// is a guest.Driver: start "envrunner guest" in the sandbox, join its standard streams with
// guest.Stdio, and answer what only the backend knows. [environment.New] takes the sandbox.
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

// New creates a sandbox in a new folder below root. The sandbox ends with this program.
func New(ctx context.Context, root string) (*guest.Sandbox, error) {
	runner, err := bundle.Path(ctx, bundle.Config{}) // the program that runs inside
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

// driver is one guest in its namespaces.
type driver struct {
	dir, runner string
	cmd         *exec.Cmd
	exited      chan struct{}
}

func (d *driver) ID() string { return filepath.Base(d.dir) }

// Dial starts the guest, which ends with this program.
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

// State returns whether the guest runs. Without the guest, nothing of the sandbox runs.
func (d *driver) State(context.Context) (guest.Status, error) {
	select {
	case <-d.exited:
		return guest.Status{State: primitives.State{Status: primitives.StatusLost}}, nil
	default:
		return guest.Status{State: primitives.State{Status: primitives.StatusRunning}}, nil
	}
}

// End kills the guest, removes its folder, and returns when nothing of the sandbox is left.
func (d *driver) End(context.Context) error {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill() // fails only if the guest has exited
		<-d.exited
	}
	return os.RemoveAll(d.dir)
}

// Close also ends the sandbox, because no other program can attach to it.
func (d *driver) Close() error { return d.End(context.Background()) }
