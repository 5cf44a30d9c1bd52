package local

import (
	"sync"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// oomWatch reports whether the kernel has killed a process because memory ran out. It counts from
// when the sandbox was opened, and only for the whole control group, so it is used only for
// processes whose killer is unknown.
type oomWatch struct {
	mu     sync.Mutex
	seen   int
	usable bool
}

// onlyServes reports whether this program exists only to serve this sandbox, which ends with it.
// Then the kernel should kill any command before this program.
func (s *Sandbox) onlyServes() bool { return s.reaper != nil }

func (o *oomWatch) start() {
	n, err := cgroup.OOMKills()
	o.seen, o.usable = n, err == nil
}

// struck reports whether there was an OOM kill since the last call.
func (o *oomWatch) struck() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.usable {
		return false
	}
	n, err := cgroup.OOMKills()
	struck := err == nil && n > o.seen
	if err == nil {
		o.seen = n
	}
	return struck
}
