package gemini

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// subagentTool is the tool that starts a subagent and waits for it.
const subagentTool = "invoke_agent"

// subagents are the unreported conversations of a session's subagents, in the order of their
// starts. The program does not record which call started which subagent, so take assumes the first
// one with the call's prompt.
type subagents []subagent

type subagent struct {
	id, prompt string
	start      time.Time
	messages   []*message
}

func newSubagents(stored []runnerscripts.SubagentTranscript) subagents {
	var list subagents
	for _, s := range stored {
		sub := subagent{id: s.ID}
		h := parse(s.Transcript)
		sub.start, _ = time.Parse(time.RFC3339, h.start) // else the zero time
		sub.messages = h.messages
		for _, m := range h.messages {
			if prompt, ok := m.prompt(); ok {
				sub.prompt = prompt
				break
			}
		}
		list = append(list, sub)
	}
	slices.SortStableFunc(list, func(a, b subagent) int { return cmp.Or(a.start.Compare(b.start), cmp.Compare(a.id, b.id)) })
	return list
}

// take removes and returns the first subagent with a prompt.
func (l *subagents) take(prompt string) (subagent, bool) {
	i := slices.IndexFunc(*l, func(s subagent) bool { return s.prompt == prompt })
	if i < 0 {
		return subagent{}, false
	}
	sub := (*l)[i]
	*l = slices.Delete(*l, i, i+1)
	return sub, true
}

// subagentArgs returns the arguments of a call that starts a subagent. ok is false for other calls.
func (c toolCall) subagentArgs() (args struct {
	Name   string `json:"agent_name"`
	Prompt string `json:"prompt"`
}, ok bool,
) {
	ok = c.Name == subagentTool && json.Unmarshal(c.Args, &args) == nil
	return args, ok
}

// tellSubagent reports the start, the conversation and the end of the subagent that a call has
// started. It ignores other calls.
func tellSubagent(out agent.Sink, c toolCall, workspace string, subs *subagents) {
	args, ok := c.subagentArgs()
	if !ok {
		return
	}
	end, _ := time.Parse(time.RFC3339, c.Time)
	sub, found := subs.take(args.Prompt)
	start := sub.start
	if !found || start.IsZero() {
		start = end
	}
	out.EmitAt(start, runnerscripts.MainConversation, runnerscripts.TypeSubagentStarted, runnerscripts.SubagentStarted{
		ToolCallID: c.ID, AgentID: sub.id, Type: args.Name, Description: c.Description, Prompt: args.Prompt,
	})
	p := newPlayer(out, workspace)
	p.conv = c.ID
	for _, m := range sub.messages {
		p.play(m)
	}
	done := runnerscripts.SubagentCompleted{
		ToolCallID: c.ID, AgentID: sub.id, Status: "failed", Output: c.ResultDisplay.Result, DurationMS: end.Sub(start).Milliseconds(),
	}
	if c.Status == "success" && c.ResultDisplay.TerminateReason == "GOAL" {
		done.Status = "completed"
	}
	out.EmitAt(end, runnerscripts.MainConversation, runnerscripts.TypeSubagentCompleted, done)
}
