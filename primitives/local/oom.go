package local

import (
	"sync"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// oomWatch tells whether the kernel has killed something for want of memory. It
// counts from when the sandbox was opened and knows the whole control group only,
// so it is asked only about processes whose killer is unknown.
type oomWatch struct {
	mu     sync.Mutex
	seen   int
	usable bool
}

// onlyServes reports whether this program is nothing without the sandbox, and the
// sandbox nothing without it: then the kernel should rather kill any of its commands.
func (s *Sandbox) onlyServes() bool { return s.reaper != nil }

func (o *oomWatch) start() {
	n, err := cgroup.OOMKills()
	o.seen, o.usable = n, err == nil
}

// struck reports whether there was a kill since it was last asked.
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
