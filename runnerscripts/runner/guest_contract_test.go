package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// guestProcess is a sandbox that "envrunner guest" serves.
type guestProcess struct {
	*guest.Sandbox
	cmd *exec.Cmd
}

// Close closes the stream and waits until the guest exits.
func (g *guestProcess) Close() error {
	err := g.Sandbox.Close()
	if g.cmd.ProcessState == nil {
		err = errors.Join(err, g.cmd.Wait())
	}
	return err
}

// TestGuestKeepsTheContract runs the whole contract against the program that
// works inside sandboxes.
func TestGuestKeepsTheContract(t *testing.T) {
	guestKeeps(t, nil, func(*exec.Cmd, string) error { return nil })
}

// TestGuestOfAnotherUserKeepsTheContract runs the groups that need /proc against a guest without
// capabilities: its own files in /proc belong to root.
func TestGuestOfAnotherUserKeepsTheContract(t *testing.T) {
	testneed.Root(t, "only root starts programs of other users")
	const user = 4242 // a user that the contract does not use
	guestKeeps(t, []string{"exec", "ending"}, func(cmd *exec.Cmd, dir string) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		cmd.Dir = "/"
		return errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, user, user))
	})
}

func guestKeeps(t *testing.T, groups []string, change func(cmd *exec.Cmd, dir string) error) {
	t.Helper()
	file := runnerFile(t)
	primitivestest.Run(t, primitivestest.Harness{
		Groups: groups,
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			cmd := exec.CommandContext(context.WithoutCancel(ctx), file, "guest", "--root", dir)
			cmd.Stderr = os.Stderr
			cmd.ExtraFiles = []*os.File{os.Stderr} // a descriptor that commands must not inherit
			if err := change(cmd, dir); err != nil {
				return nil, err
			}
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
			client, err := guest.Dial(ctx, guest.Stdio(stdout, stdin), guest.Config{Isolation: primitives.IsolationFull, HandshakeTimeout: tooLong})
			if err != nil {
				return nil, errors.Join(err, cmd.Wait())
			}
			return &guestProcess{Sandbox: client, cmd: cmd}, nil
		},
	})
}
