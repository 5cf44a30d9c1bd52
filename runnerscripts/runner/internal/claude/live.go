package claude

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// stream translates a piece of an unfinished message.
func (t *translator) stream(l streamLine) {
	conv := conversationID(l.ParentToolUseID)
	ev := l.Event
	switch ev.Type {
	case "message_start":
		t.draft(conv, ev.Message.ID)
	case "content_block_start":
		if d := t.drafts[conv]; d != nil {
			d.begin(ev.Index, ev.ContentBlock.Type)
			t.delta(conv, d, ev.Index, ev.ContentBlock.Text, ev.ContentBlock.Thinking)
		}
	case "content_block_delta":
		if d := t.drafts[conv]; d != nil {
			t.delta(conv, d, ev.Index, ev.Delta.Text, ev.Delta.Thinking)
		}
	case "message_delta":
		if conv == runnerscripts.MainConversation {
			t.contextUse(time.Time{}, ev.Usage)
		}
	}
}

// delta reports the new text of a block.
func (t *translator) delta(conv string, d *draft, index int, text, thinking string) {
	typ, said := runnerscripts.TypeAgentMessage, text
	if thinking != "" {
		typ, said = runnerscripts.TypeAgentThought, thinking
	}
	if said == "" {
		return
	}
	d.at(index).text.WriteString(said)
	t.emit(time.Time{}, conv, typ, runnerscripts.ContentChunk{
		BlockID: blockID(d.messageID, index),
		Content: runnerscripts.Content{Type: "text", Text: said},
	})
}

// liveMessage translates an "assistant" or "user" line.
func (t *translator) liveMessage(l messageLine) {
	conv := conversationID(l.ParentToolUseID)
	switch l.Type {
	case "assistant":
		if l.IsAPIError {
			return // the query fails with it
		}
		t.assistant(l.Timestamp, conv, l.Message, -1)
	case "user":
		for _, b := range l.Message.Content {
			if b.Type == blockToolResult {
				t.toolResult(l.Timestamp, conv, b, l.ToolUseResult)
			}
		}
		// Text is the prompt of a subagent, which was reported with its start, or a note of the
		// program itself.
	}
}

// task translates the program's messages about subagents.
func (t *translator) task(l systemLine) {
	switch l.Subtype {
	case "task_started":
		if l.TaskType != "local_agent" || l.ToolUseID == "" {
			return
		}
		t.startSubagent(time.Time{}, t.parentOf(l.ToolUseID), runnerscripts.SubagentStarted{
			ToolCallID: l.ToolUseID, AgentID: l.TaskID, Type: l.SubagentType,
			Description: l.Description, Prompt: l.Prompt,
		})
	case "task_notification":
		// A subagent in the foreground ends with the result of its tool call.
		if _, waiting := t.tools[l.ToolUseID]; waiting {
			return
		}
		t.endSubagent(time.Time{}, l.ToolUseID, runnerscripts.SubagentCompleted{
			Status: subagentStatus(l.Status), Output: l.Summary, DurationMS: l.Usage.DurationMS,
		})
	}
}

// retry reports a retry of the model's API.
func (t *translator) retry(l systemLine, raw json.RawMessage) {
	what := fmt.Sprintf("the model's API failed with status %d", l.ErrorStatus)
	switch l.ErrorStatus {
	case 0:
		what = "the model's API could not be reached: check its address"
	case http.StatusUnauthorized, http.StatusForbidden:
		what = fmt.Sprintf("the model's API refused the key with status %d", l.ErrorStatus)
	}
	t.emit(time.Time{}, runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level: "warn", Code: runnerscripts.FailAPI, HTTPStatus: l.ErrorStatus,
		Message: fmt.Sprintf("%s; try %d of %d follows in %.1f s", what, l.Attempt, l.MaxRetries, l.RetryDelayMS/1000),
		Data:    raw,
	})
}
