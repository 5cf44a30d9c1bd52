package local

import (
	"context"
	"errors"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// GrowPipe gives a pipe the large buffer, for benchmarks to compare with.
func GrowPipe(fd int) error { return growPipe(fd, largePipe) }

// NewSweeping makes a sandbox that does without control groups, as on systems
// that have none.
func NewSweeping(ctx context.Context, cfg Config) (*Sandbox, error) {
	s, err := New(ctx, cfg)
	if err != nil || s.group == nil {
		return s, err
	}
	s.group.Close()
	err = errors.Join(cgroup.Remove(s.group.Path()), func() error {
		s.st.Group, s.st.NoGroup = "", "turned off"
		return writeJSON(s.st.file(stateFile), s.st)
	}())
	s.group = nil
	s.caps = s.findCapabilities()
	return s, err
}
