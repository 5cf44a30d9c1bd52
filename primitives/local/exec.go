package local

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Exec implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	return s.exec(ctx, cmd, outputFiles{})
}

// ExecOutput is like Exec but writes the command's output to files. stdout and stderr may be the
// same file; the caller closes them. Stdout and Stderr of the process are at EOF. Durable and TTY
// are fs.ErrInvalid.
func (s *Sandbox) ExecOutput(ctx context.Context, cmd primitives.Command, stdout, stderr *os.File) (primitives.Process, error) {
	if cmd.Durable || cmd.TTY != nil {
		return nil, s.fail("exec", program(&cmd), fmt.Errorf("%w: the output of durable commands and terminals is not the caller's", fs.ErrInvalid))
	}
	return s.exec(ctx, cmd, outputFiles{stdout, stderr})
}

// outputFiles holds the files that receive a command's output instead of pipes. The zero value means
// pipes.
type outputFiles struct{ stdout, stderr *os.File }

func (s *Sandbox) exec(ctx context.Context, cmd primitives.Command, out outputFiles) (primitives.Process, error) {
	target := program(&cmd)
	end, err := s.begin("exec", target)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := ctx.Err(); err != nil {
		return nil, s.fail("exec", target, err)
	}
	if cmd.Durable {
		p, err := s.startDurable(ctx, &cmd)
		if err != nil {
			return nil, s.fail("exec", target, err)
		}
		return p, nil
	}
	c, err := s.start(&cmd, out)
	if err != nil {
		return nil, s.fail("exec", target, err)
	}
	p, err := s.adopt(ctx, c, &cmd, 0)
	if err != nil {
		return nil, s.fail("exec", target, err)
	}
	return p, nil
}

func program(cmd *primitives.Command) string {
	if len(cmd.Args) == 0 {
		return ""
	}
	return cmd.Args[0]
}

// drainDelay is how long Run keeps reading after the command has exited while its background
// processes still hold its output.
const drainDelay = 250 * time.Millisecond
