package acp

import (
	"slices"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mostEarly limits the updates that wait for the end of a start, in bytes.
const mostEarly = 1 << 20

// updates reports the updates of the agent in order. It holds those that come during a start until
// the session is initialized: agents send them before or after their replies.
type updates struct {
	mu      sync.Mutex // held while updates are reported
	started bool
	early   []Update
	size    int // of early, in bytes
	report  func(Update)
}

// restart holds updates until release.
func (s *updates) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.early, s.size = false, nil, 0
}

// take reports an update, or holds it. If there are too many, it reports them early.
func (s *updates) take(u Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		s.report(u)
		return
	}
	s.early = append(s.early, u)
	if s.size += len(u.Raw); s.size > mostEarly {
		s.releaseLocked()
	}
}

// dropModes drops the changes of the mode that came before the driver has set the mode.
func (s *updates) dropModes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, func(u Update) bool { return runnerscripts.EventType(u.Kind) == runnerscripts.TypeModeUpdate })
}

// release reports the early updates and no longer holds any.
func (s *updates) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *updates) releaseLocked() {
	for _, u := range s.early {
		s.report(u)
	}
	s.started, s.early = true, nil
}
