package environment

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/primitives"
)

// LogEntry is an entry in the log of a sandbox, for its operator.
type LogEntry struct {
	// Time is zero if it is unknown.
	Time time.Time `json:"time,omitzero"`
	// Source is "engine", "runner", "host" for what envctl adds, or "stderr" for the standard error of the runner and the
	// agent.
	Source  string `json:"source"`
	Message string `json:"message"`
	// OutOfMemory means that the kernel killed a process because the sandbox had no memory left.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// Logs returns what happened to the agent in a kept sandbox, from the beginning: when its
// queries began and how they ended, what its runner reported, and its standard error. With
// follow, the sequence continues until the latest agent ends or ctx is done. If the sandbox
// stores none of this, Logs returns nothing.
func (e *Environment) Logs(ctx context.Context, follow bool) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		e.queries.Logs(ctx, follow, func(entry query.LogEntry, err error) bool { return yield(LogEntry(entry), err) })
	}
}

// History returns what the backend itself knows of a sandbox: when it was started, that it ran
// out of memory, how it ended. It also works for a while after the sandbox is gone. For an
// unknown sandbox the error is fs.ErrNotExist. A type without history returns nothing.
func History(ctx context.Context, s Sandbox, id string) ([]LogEntry, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	h, ok := p.(primitives.Historian)
	if !ok {
		return nil, nil
	}
	found, err := h.History(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("history of the sandbox: %w", err)
	}
	entries := make([]LogEntry, 0, len(found))
	for _, f := range found {
		entries = append(entries, LogEntry{f.Time, "engine", f.Message, f.OutOfMemory})
	}
	return entries, nil
}

// reportDelay is how long the backend may take to report that memory ran out, after the process
// has ended.
const reportDelay = 200 * time.Millisecond

// outOfMemory reports whether the sandbox ran out of memory after since. What was killed knows only
// that it was killed.
func (e *Environment) outOfMemory(ctx context.Context, since time.Time) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.scripts.Probe)
	defer cancel()
	for try := range 2 {
		if try > 0 {
			timer := time.NewTimer(reportDelay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return false
			}
		}
		entries, err := History(ctx, e.cfg.Sandbox, e.ID())
		if err != nil || len(entries) == 0 {
			return false // keep the failure as it is
		}
		for _, entry := range entries {
			if entry.OutOfMemory && entry.Time.After(since) {
				return true
			}
		}
	}
	return false
}
