package local

import (
	"context"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// ReadUsage implements primitives.UsageReader. The processor time is known with control groups
// only; without them ReadUsage searches for the processes.
func (s *Sandbox) ReadUsage(ctx context.Context) (primitives.Usage, error) {
	end, err := s.begin("usage", s.id)
	if err != nil {
		return primitives.Usage{}, err
	}
	defer end()
	if err := ctx.Err(); err != nil {
		return primitives.Usage{}, s.fail("usage", s.id, err)
	}
	procs, _ := s.processes()
	members := s.family(procs).members()
	u := primitives.Usage{CPU: -1, Memory: -1, Processes: -1}
	if memory, ok := proctree.Memory(members); ok {
		u.Memory, u.Processes = memory, len(members)
	}
	if s.group != nil && !s.noGroup.Load() {
		if cpu, err := cgroup.CPU(s.group.Path()); err == nil {
			u.CPU = cpu
		}
	}
	return u, nil
}
