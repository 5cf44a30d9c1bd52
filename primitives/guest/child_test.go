package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

var _ = guest.SetRunChild(runChild)

// The environment variables of a child: where its sandbox is and, if the sandbox exists
// already, its ID.
const (
	childRoot = "GUEST_TEST_ROOT"
	childID   = "GUEST_TEST_ID"
)

// The exit statuses of a child that cannot serve.
const (
	exitNotExist   = 3
	exitTerminated = 4
)

// runChild is the main function of this program as a child: it serves the engine over its
// standard streams, or supervises a durable command.
func runChild() bool {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		// Not os.Exit: with the race detector, it sleeps for a second.
		syscall.Exit(local.Supervise(context.Background(), os.Args[2]))
	}
	root := os.Getenv(childRoot)
	if root == "" {
		return false
	}
	err := serveChild(root)
	switch {
	case err == nil:
		return true
	case errors.Is(err, fs.ErrNotExist):
		os.Exit(exitNotExist)
	case errors.Is(err, primitives.ErrTerminated):
		os.Exit(exitTerminated)
	}
	fmt.Fprintln(os.Stderr, "guest:", err)
	os.Exit(1)
	return true
}

func serveChild(root string) error {
	ctx := context.Background()
	id, exists := os.LookupEnv(childID)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, key := range []string{childRoot, childID} {
		if err := os.Unsetenv(key); err != nil {
			return err
		}
	}
	cfg := local.Config{Root: root, Runner: self}
	var engine *local.Sandbox
	if exists {
		engine, err = local.Attach(ctx, cfg, id)
	} else {
		engine, err = local.New(ctx, cfg)
	}
	if err != nil {
		return err
	}
	stream, err := guest.OwnStdio(os.Stdin, os.Stdout)
	if err != nil {
		return err
	}
	err = guest.Serve(ctx, stream, engine, guest.ServeConfig{})
	return errors.Join(err, engine.Close())
}

// runnerOf returns the program that supervises durable commands: this one.
func runnerOf(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// child is a sandbox in a process of its own.
type child struct {
	*guest.Sandbox
	cmd *exec.Cmd
}

// startChild runs program as a guest and dials it. env is added to its environment.
func startChild(ctx context.Context, program, root string, cfg guest.Config, env ...string) (*child, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program)
	cmd.Env = append(append(os.Environ(), childRoot+"="+root), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c, err := guest.Dial(ctx, guest.Stdio(stdout, stdin), cfg)
	if err != nil {
		werr := cmd.Wait()
		switch cmd.ProcessState.ExitCode() {
		case exitNotExist:
			werr = fs.ErrNotExist
		case exitTerminated:
			werr = primitives.ErrTerminated
		}
		return nil, errors.Join(err, werr)
	}
	return &child{Sandbox: c, cmd: cmd}, nil
}

// Close closes the stream and waits for the guest to exit.
func (c *child) Close() error {
	err := c.Sandbox.Close()
	if c.cmd.ProcessState == nil {
		err = errors.Join(err, c.cmd.Wait())
	}
	return err
}

// withSocket returns a configuration with a socket that the guest can move to. The socket is
// below dir, which is removed with the test even if this process is killed, unless the path of
// a socket must be shorter.
func withSocket(t testing.TB, dir string) guest.Config {
	t.Helper()
	const longest = 70
	if len(dir) > longest {
		dir = ""
	}
	dir, err := os.MkdirTemp(dir, "guest") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return guest.Config{Isolation: primitives.IsolationFull, Socket: &guest.Socket{Listener: l, Path: path}}
}

// TestContractOverASocket runs the groups that passed descriptors influence: how commands get
// their streams, and what closes them. The contract test of containers runs all groups over a
// socket, but its guest has no race detector.
func TestContractOverASocket(t *testing.T) {
	self := runnerOf(t)
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"exec", "streams", "ending", "terminal"},
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			return open(startChild(ctx, self, dir, withSocket(t, dir)))
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			return open(startChild(ctx, self, dir, withSocket(t, dir), childID+"="+id))
		},
	})
}

// open keeps a nil child from becoming an interface that is not nil.
func open(c *child, err error) (primitives.EnvironmentPrimitive, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
