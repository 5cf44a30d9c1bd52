package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// guestProcess is a sandbox that "envrunner guest" serves.
type guestProcess struct {
	*guest.Client
	cmd *exec.Cmd
}

// Close closes the stream and waits for the guest to leave.
func (g *guestProcess) Close() error {
	err := g.Client.Close()
	if g.cmd.ProcessState == nil {
		err = errors.Join(err, g.cmd.Wait())
	}
	return err
}

// TestGuestKeepsTheContract runs the whole contract against the program that
// works inside sandboxes.
func TestGuestKeepsTheContract(t *testing.T) {
	file := runnerFile(t)
	primitivestest.Run(t, primitivestest.Harness{
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			cmd := exec.CommandContext(context.WithoutCancel(ctx), file, "guest", "--root", dir)
			cmd.Stderr = os.Stderr
			cmd.ExtraFiles = []*os.File{os.Stderr} // that a command must not get
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
			client, err := guest.Dial(ctx, guest.Stdio(stdout, stdin), guest.Config{})
			if err != nil {
				return nil, errors.Join(err, cmd.Wait())
			}
			return &guestProcess{Client: client, cmd: cmd}, nil
		},
	})
}
