package local

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Exec implements primitives.EnvironmentPrimitive.
func (s *Sandbox) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
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
	c, err := s.start(&cmd)
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

// drainDelay is how long Run reads on after the command has exited while
// processes that it left in the background still hold its output.
const drainDelay = 250 * time.Millisecond
