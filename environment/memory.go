package environment

import (
	"context"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// reportDelay is how long what runs a sandbox may take to report that memory ran out,
// after the process has ended.
const reportDelay = 200 * time.Millisecond

// outOfMemory reports whether an agent has probably crashed because the sandbox ran out of
// memory since a query began: the agent itself only sees that it was killed.
func (e *Environment) outOfMemory(ctx context.Context, failed runnerscripts.QueryFailed, since time.Time) bool {
	if failed.Code != runnerscripts.FailAgent {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.probe)
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
			return false // the failure stands as it is
		}
		for _, entry := range entries {
			if entry.OutOfMemory && entry.Time.After(since) {
				return true
			}
		}
	}
	return false
}

// explain says of a failure for want of memory that it is one, and reports whether it did.
func (e *Environment) explain(ctx context.Context, failed *runnerscripts.QueryFailed, since time.Time) bool {
	if !e.outOfMemory(ctx, *failed, since) {
		return false
	}
	advice := "give the sandbox more"
	if u, err := primitives.ReadUsage(context.WithoutCancel(ctx), e.prim); err == nil && u.MemoryLimit > 0 {
		advice = fmt.Sprintf("give the sandbox more than %d MiB (--memory)", u.MemoryLimit>>20)
	}
	failed.Message = fmt.Sprintf("memory ran out, and the kernel ended the agent (%s); %s", failed.Message, advice)
	return true
}
