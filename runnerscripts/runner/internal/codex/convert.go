package codex

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

var _ handoff.Converter = Driver{}

// Convert writes another agent's conversation as a rollout. Response items are for the model,
// the other items for the user.
//
// Codex can import sessions of Claude Code, but turns tool calls into agent messages and drops
// their input, so the driver does not use that.
func (Driver) Convert(s runnerscripts.Session, c handoff.Conversation) (runnerscripts.Transcript, error) {
	ids := handoff.NewIDs(s.SessionID, c)
	w := &rollout{session: s, ids: ids, agent: c.Agent, thread: ids.UUID("thread", 0), at: c.Items[0].Time}
	meta := map[string]any{
		"id": w.thread, "session_id": w.thread, "timestamp": handoff.Stamp(w.at), "cwd": s.Paths.Workspace,
		"originator": "agentenv", "cli_version": testedVersion, "source": "vscode",
		"history_mode": "paginated", // which stores the items for the user
	}
	// Codex refuses to resume a thread with a provider other than its first.
	config, err := settings(s, runnerscripts.Profile{})
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	if provider, ok := config["model_provider"].(string); ok {
		meta["model_provider"] = provider
	}
	w.line("session_meta", meta)
	for i, it := range c.Items {
		w.at = it.Time
		if it.Kind == handoff.User {
			w.endTurn()
			w.beginTurn(i)
		}
		w.item(i, it)
	}
	w.endTurn()
	return runnerscripts.Transcript{Main: w.text.String()}, nil
}

// Restores returns RestoredConverted: the driver writes the program's own files.
func (Driver) Restores() runnerscripts.Restored { return runnerscripts.RestoredConverted }

// rollout builds the text of a rollout.
type rollout struct {
	session       runnerscripts.Session
	ids           handoff.IDs
	agent, thread string
	at            time.Time
	turn          string // empty between turns
	lines         int
	text          bytes.Buffer
}

func (w *rollout) line(typ string, payload any) {
	record := map[string]any{"timestamp": handoff.Stamp(w.at), "type": typ, "payload": payload}
	if w.lines > 0 { // the first line has no ordinal
		record["ordinal"] = w.lines
	}
	w.lines++
	w.text.Write(jsonOf(record))
	w.text.WriteByte('\n')
}

func (w *rollout) beginTurn(i int) {
	w.turn = w.ids.UUID("turn", i)
	w.line("event_msg", map[string]any{
		"type": "task_started", "turn_id": w.turn, "started_at": w.at.Unix(), "model_context_window": nil, "collaboration_mode_kind": "default",
	})
}

func (w *rollout) endTurn() {
	if w.turn == "" {
		return
	}
	w.line("event_msg", map[string]any{"type": "task_complete", "turn_id": w.turn, "last_agent_message": nil})
	w.turn = ""
}

func (w *rollout) item(i int, it handoff.Item) {
	switch it.Kind {
	case handoff.User:
		w.message("user", "input_text", it.Text)
		w.completed(map[string]any{
			"type": "UserMessage", "id": w.ids.UUID("item", i),
			"content": []any{map[string]any{"type": "text", "text": it.Text, "text_elements": []any{}}},
		})
	case handoff.Agent:
		w.message("assistant", "output_text", it.Text)
		w.completed(map[string]any{
			"type": "AgentMessage", "id": "msg_" + w.ids.Hex("item", i, 26),
			"content": []any{map[string]any{"type": "Text", "text": it.Text}},
		})
	case handoff.Tool:
		w.call("call_"+w.ids.Hex("item", i, 24), it.Call)
	}
}

func (w *rollout) message(role, part, text string) {
	w.line("response_item", map[string]any{
		"type": "message", "role": role, "content": []any{map[string]any{"type": part, "text": text}},
	})
}

// call writes a tool call and its end. A command becomes a call of Codex's own command tool,
// other calls become calls of the other agent's tools.
func (w *rollout) call(id string, call *handoff.Call) {
	status, exit := "completed", 0
	if call.Failed {
		status, exit = "failed", 1
	}
	name, arguments := call.Name, call.Input
	shown := map[string]any{
		"type": "McpToolCall", "id": id, "server": w.agent, "tool": call.Name, "arguments": call.Input, "status": status,
		"result": map[string]any{"content": []any{map[string]any{"type": "text", "text": call.Output}}, "isError": call.Failed},
	}
	if command, ok := call.Command(); ok {
		name, arguments = "exec_command", jsonOf(map[string]any{"cmd": command})
		shown = map[string]any{
			"type": "CommandExecution", "id": id, "command": []string{"/bin/bash", "-lc", command}, "cwd": w.session.Paths.Workspace,
			"parsed_cmd": []any{map[string]any{"type": "unknown", "cmd": command}}, "source": "agent",
			"status": status, "aggregated_output": call.Output, "exit_code": exit,
		}
	}
	w.line("response_item", map[string]any{
		"type": "function_call", "name": name, "arguments": string(compact(arguments)), "call_id": id,
	})
	w.completed(shown)
	w.line("response_item", map[string]any{"type": "function_call_output", "call_id": id, "output": call.Output})
}

// completed writes an item for the user.
func (w *rollout) completed(item map[string]any) {
	ms := w.at.UnixMilli()
	w.line("event_msg", map[string]any{
		"type": "item_completed", "thread_id": w.thread, "turn_id": w.turn, "item": item, "started_at_ms": ms, "completed_at_ms": ms,
	})
}

// compact returns raw without spaces, or unchanged if it is no JSON.
func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}
