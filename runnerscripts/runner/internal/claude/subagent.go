package claude

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// startSubagent reports the start of a subagent and its prompt as the first message of its
// conversation.
func (t *translator) startSubagent(at time.Time, parent string, s runnerscripts.SubagentStarted) {
	t.subagents[s.ToolCallID] = s
	t.emit(at, parent, runnerscripts.TypeSubagentStarted, s)
	if s.Prompt == "" {
		return
	}
	t.emit(at, s.ToolCallID, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: blockID(s.ToolCallID, 0),
		Content: runnerscripts.Content{Type: "text", Text: s.Prompt},
	})
}

// parentOf returns the conversation of a tool call.
func (t *translator) parentOf(toolCallID string) string {
	if conv, ok := t.callers[toolCallID]; ok {
		return conv
	}
	return runnerscripts.MainConversation
}

// endSubagent reports the end of a subagent, once.
func (t *translator) endSubagent(at time.Time, toolCallID string, end runnerscripts.SubagentCompleted) {
	if s, ok := t.subagents[toolCallID]; ok {
		end.ToolCallID, end.AgentID = toolCallID, s.AgentID
		t.emit(at, t.parentOf(toolCallID), runnerscripts.TypeSubagentCompleted, end)
	}
	delete(t.subagents, toolCallID)
	delete(t.callers, toolCallID)
	delete(t.drafts, toolCallID)
}

// subagentReport is the report of the tool that starts subagents.
type subagentReport struct {
	Status          string  `json:"status"`
	AgentID         string  `json:"agentId"`
	Content         content `json:"content"`
	HeadNotes       int     `json:"harnessNoteCount"` // of Content, by the program
	TailNotes       int     `json:"harnessTailCount"`
	TotalDurationMS int64   `json:"totalDurationMs"`
}

// statusLaunched is the status of a subagent that continues in the background.
const statusLaunched = "async_launched"

// subagentResult ends a subagent that ran in the foreground.
func (t *translator) subagentResult(at time.Time, result block, report []byte) {
	if result.IsError || !isObject(report) {
		t.endSubagent(at, result.ToolUseID, runnerscripts.SubagentCompleted{
			Status: subagentStatus("failed"), Output: joinText(result.Content),
		})
		return
	}
	var r subagentReport
	if err := json.Unmarshal(report, &r); err != nil || r.Status == statusLaunched {
		return
	}
	said := r.Content
	if r.HeadNotes >= 0 && r.TailNotes >= 0 && r.HeadNotes <= len(said) && r.TailNotes <= len(said)-r.HeadNotes {
		said = said[r.HeadNotes : len(said)-r.TailNotes]
	}
	t.endSubagent(at, result.ToolUseID, runnerscripts.SubagentCompleted{
		Status: subagentStatus(r.Status), Output: joinText(said), DurationMS: r.TotalDurationMS,
	})
}

// subagentStatus returns "completed" or "failed".
func subagentStatus(status string) string {
	if status == "completed" {
		return status
	}
	return "failed"
}

func joinText(c content) string {
	var b strings.Builder
	for _, block := range c {
		if block.Type == blockText {
			b.WriteString(block.Text)
		}
	}
	return b.String()
}
