package opencode

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// subagentSession returns the session of the subagent that a tool call started, or "" if it has
// none yet.
func subagentSession(p part) string {
	var meta struct {
		SessionID string `json:"sessionId"`
	}
	_ = json.Unmarshal(p.State.Metadata, &meta) // a call that has not started has no metadata
	return meta.SessionID
}

// startSubagent reports the start of a subagent, once it has a session.
func (t *translator) startSubagent(conv string, p part) {
	id := subagentSession(p)
	if _, started := t.subagents[p.ID]; started || id == "" {
		return
	}
	t.subagents[p.ID] = id
	t.conversations[id] = p.ID
	in := parseInput(p.State.Input)
	t.emit(at(p.State.Time.Start), conv, runnerscripts.TypeSubagentStarted, runnerscripts.SubagentStarted{
		ToolCallID: p.ID, AgentID: id, Type: in.SubagentType, Description: in.Description, Prompt: in.Prompt,
	})
	work := t.stored[id]
	delete(t.stored, id)
	for _, m := range work {
		t.message(m)
	}
}

// endSubagent reports the end of a subagent whose start was reported.
func (t *translator) endSubagent(conv string, p part) {
	id, started := t.subagents[p.ID]
	if !started {
		return
	}
	done := runnerscripts.SubagentCompleted{
		ToolCallID: p.ID, AgentID: id, Status: "completed", Output: taskResult(p.State.Output),
		DurationMS: p.State.Time.End - p.State.Time.Start,
	}
	if p.State.Status == toolError {
		done.Status, done.Output = "failed", p.State.Error
	}
	t.emit(at(p.State.Time.End), conv, runnerscripts.TypeSubagentCompleted, done)
}

// taskResult returns the answer of the subagent, without the tags that enclose it for the model.
func taskResult(output string) string {
	const begin, end = "<task_result>\n", "\n</task_result>"
	_, rest, ok := strings.Cut(output, begin)
	last := strings.LastIndex(rest, end)
	if !ok || last < 0 {
		return output
	}
	return rest[:last]
}

// subagentSessions returns the sessions of the subagents that the messages' tool calls started,
// each once.
func subagentSessions(messages []message) []string {
	var ids []string
	for _, m := range messages {
		for _, p := range m.Parts {
			if p.Type != partTool || p.Tool != toolTask {
				continue
			}
			if id := subagentSession(p); idPattern.Get().MatchString(id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
