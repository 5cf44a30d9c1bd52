package main

import (
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mostDoing is how many running tools a printer tracks.
const mostDoing = 64

// doing shows the agent's activity in the status line.
type doing struct {
	status *term.Status
	tools  []runningTool // the oldest first
}

type runningTool struct {
	id, title string
	since     time.Time
}

// event updates the status from an event.
func (d *doing) event(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeQueryQueued, runnerscripts.TypeEnvironmentCreating:
		d.status.Set("starting the sandbox", time.Now())
		return
	case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		d.nothing()
		return
	case runnerscripts.TypePermissionRequest:
		d.status.Set("waiting for permission", time.Now())
		return
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		call, err := runnerscripts.Payload[runnerscripts.ToolCall](ev)
		if err != nil {
			return
		}
		d.tool(call)
	case runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryStarted, runnerscripts.TypePermissionResolved,
		runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought, runnerscripts.TypePlan:
	default:
		return // the activity does not change
	}
	if len(d.tools) == 0 {
		d.status.Set("waiting for the model", time.Now())
		return
	}
	last := d.tools[len(d.tools)-1]
	d.status.Set("running "+last.title, last.since)
}

func (d *doing) tool(call runnerscripts.ToolCall) {
	at := slices.IndexFunc(d.tools, func(t runningTool) bool { return t.id == call.ToolCallID })
	switch ended := hasEnded(call); {
	case ended && at >= 0:
		d.tools = slices.Delete(d.tools, at, at+1)
	case ended:
	case at >= 0:
		d.tools[at].title = firstOf(call.Title, d.tools[at].title)
	case len(d.tools) < mostDoing:
		d.tools = append(d.tools, runningTool{call.ToolCallID, firstOf(call.Title, call.Name), time.Now()})
	}
}

// nothing clears the status.
func (d *doing) nothing() {
	d.tools = nil
	d.status.Set("", time.Time{})
}
