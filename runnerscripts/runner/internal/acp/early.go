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
	emit    func(Update)
}

// restart holds updates until release.
func (s *updates) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.early, s.size = false, nil, 0
}

// report reports an update, or holds it. If there are too many, it reports them early.
func (s *updates) report(u Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		s.emit(u)
		return
	}
	s.early = append(s.early, u)
	if s.size += len(u.Raw); s.size > mostEarly {
		s.reportEarlyLocked()
	}
}

// reportEarlyLocked reports the early updates except the last change of the mode, which dropModes may
// still drop.
func (s *updates) reportEarlyLocked() {
	var mode []Update
	for _, u := range s.early {
		if isMode(u) {
			mode = []Update{u}
		} else {
			s.emit(u)
		}
	}
	s.early, s.size = mode, 0
}

func isMode(u Update) bool { return runnerscripts.EventType(u.Kind) == runnerscripts.TypeModeUpdate }

// dropModes drops the changes of the mode that came before the driver has set the mode.
func (s *updates) dropModes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = slices.DeleteFunc(s.early, isMode)
}

// release reports the early updates and no longer holds any.
func (s *updates) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.early {
		s.emit(u)
	}
	s.started, s.early = true, nil
}
