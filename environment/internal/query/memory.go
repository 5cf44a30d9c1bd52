package query

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// explain adds to a failure that memory ran out, if it did, and reports whether it did.
func (r *run) explain(ctx context.Context, failed *runnerscripts.QueryFailed) bool {
	if failed.Code != runnerscripts.FailAgent || !r.q.OutOfMemory(ctx, r.began) {
		return false
	}
	failed.Message = fmt.Sprintf("memory ran out, and the kernel ended the agent (%s); %s", failed.Message, r.q.moreMemory(ctx))
	return true
}

// moreMemory returns the advice for a sandbox that ran out of memory.
func (q *Queries) moreMemory(ctx context.Context) string {
	if u, err := primitives.ReadUsage(context.WithoutCancel(ctx), q.Scripts.Sandbox); err == nil && u.MemoryLimit > 0 {
		return fmt.Sprintf("give the sandbox more than %d MiB", u.MemoryLimit>>20)
	}
	return "give the sandbox more"
}

// noteTool remembers when a tool of the agent was killed, or may have been: not every agent reports
// how its commands end.
func (r *run) noteTool(ev runnerscripts.Event) {
	if r.killed || !bytes.Contains(ev.Payload, []byte(runnerscripts.ToolFailed)) {
		return
	}
	call, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
	r.killed = err == nil && call.Status == runnerscripts.ToolFailed && (call.ExitCode == 0 || call.ExitCode == 128+int(unix.SIGKILL))
}

// warnOutOfMemory reports that a tool was killed because the sandbox ran out of memory.
func (r *run) warnOutOfMemory(ctx context.Context) {
	if !r.killed || !r.q.OutOfMemory(ctx, r.began) {
		return
	}
	r.killed = false
	w := warning("memory ran out in the sandbox during the query, and the kernel killed a process; " + r.q.moreMemory(ctx))
	w.Data = json.RawMessage(`{"out_of_memory":true}`)
	r.q.events.Log.Warn(w.Message, eventlog.Query, r.query.ID)
	r.report(r.q.events.New(runnerscripts.TypeLog, r.query.ID, w))
}
