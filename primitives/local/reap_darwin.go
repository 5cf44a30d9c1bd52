package local

import (
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

type reaper struct{}

func (s *Sandbox) startReaper() error {
	return fmt.Errorf("%w: no program can adopt orphans on this system", errors.ErrUnsupported)
}

func (*reaper) adopted(proctree.Proc) bool { return false }
func (*reaper) close()                     {}
