package session

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// unhealthyAfter is how many probes in a row must fail before the session gives up the sandbox:
// a single lost answer must not end a working sandbox. A sandbox known to be gone is given up at
// once.
const unhealthyAfter = 3

// probeTimeout is how long a sandbox may take to answer.
const probeTimeout = 10 * time.Second

// startMonitors starts the goroutines that monitor a sandbox. They end with the sandbox.
func (s *AgentSession) startMonitors(ctx context.Context, live *liveSandbox) {
	ctx, live.cancel = context.WithCancel(ctx)
	if s.cfg.HealthInterval > 0 {
		live.wg.Go(func() { s.probe(ctx, live) })
	}
	if s.cfg.WatchWorkspace == nil {
		return
	}
	// The watch is live before the first query begins.
	changes, err := live.WatchWorkspace(ctx, *s.cfg.WatchWorkspace)
	if err != nil {
		s.unwatched(ctx, err)
		return
	}
	live.wg.Go(func() { s.watch(ctx, changes) })
}

// probe checks the health of the sandbox periodically.
func (s *AgentSession) probe(ctx context.Context, live *liveSandbox) {
	tick := time.NewTicker(s.cfg.HealthInterval)
	defer tick.Stop()
	failed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pctx, cancel := context.WithTimeout(ctx, min(probeTimeout, s.cfg.HealthInterval))
		err := live.Healthy(pctx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if failed > 0 {
				s.report(ctx, live, "running", "the sandbox answers again")
			}
			failed = 0
			continue
		}
		failed++
		s.report(ctx, live, "unhealthy", err.Error())
		if gone(err) || failed == unhealthyAfter {
			s.giveUp(live)
			return
		}
	}
}

// report stores an event for a failed probe or a recovery. Successful probes get no event, which
// would flood the log.
func (s *AgentSession) report(ctx context.Context, live *liveSandbox, status, message string) {
	// If append fails the session has ended and reports it.
	_ = s.append(ctx, event(runnerscripts.TypeEnvironmentHealth, "", runnerscripts.EnvironmentInfo{
		ID: live.ID(), Backend: live.backend, Status: status, Message: message,
	}))
}

// giveUp marks the sandbox as dead, so that the worker ends it.
func (s *AgentSession) giveUp(live *liveSandbox) {
	live.die()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil {
		s.active.stop(errUnhealthy)
	}
}

// watch stores the changes in the workspace as events.
func (s *AgentSession) watch(ctx context.Context, changes iter.Seq2[runnerscripts.Event, error]) {
	for ev, err := range changes {
		if err != nil {
			if ctx.Err() == nil {
				s.unwatched(ctx, err)
			}
			return
		}
		if err := s.append(ctx, ev); err != nil {
			return
		}
	}
}

// unwatched reports that changes in the workspace cannot be observed.
func (s *AgentSession) unwatched(ctx context.Context, err error) {
	// If append fails the session has ended and reports it.
	_ = s.append(ctx, event(runnerscripts.TypeError, "", runnerscripts.ErrorInfo{
		Code: failure(err).Code, Message: fmt.Sprintf("changes in the workspace are not reported: %v", err),
	}))
}
