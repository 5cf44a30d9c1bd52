package claude

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

var _ handoff.Converter = Driver{}

// Convert writes another agent's conversation as a transcript of this program.
func (Driver) Convert(s runnerscripts.Session, c handoff.Conversation) (runnerscripts.Transcript, error) {
	w := &writer{session: s, ids: handoff.NewIDs(s.SessionID, c), agent: c.Agent}
	for i, it := range c.Items {
		switch it.Kind {
		case handoff.User:
			w.turn++
			w.add(i, it, "user", map[string]any{"role": "user", "content": it.Text}, nil)
		case handoff.Agent:
			w.answer(i, it, "end_turn", map[string]any{"type": "text", "text": it.Text})
		case handoff.Tool:
			w.call(i, it)
		}
	}
	return runnerscripts.Transcript{Main: w.text.String()}, nil
}

// Restores returns RestoredConverted: the driver writes the files of the program.
func (Driver) Restores() runnerscripts.Restored { return runnerscripts.RestoredConverted }

// writer builds a transcript.
type writer struct {
	session runnerscripts.Session
	ids     handoff.IDs
	agent   string
	turn    int
	parent  string // the ID of the last record
	text    strings.Builder
}

// add writes a record; more are additional fields.
func (w *writer) add(i int, it handoff.Item, typ string, message any, more map[string]any) {
	id := w.ids.UUID(typ, i)
	fields := map[string]any{
		"parentUuid": nil, "isSidechain": false, "type": typ, "message": message, "uuid": id, "timestamp": handoff.Stamp(it.Time),
		"promptId": w.ids.UUID("prompt", w.turn), "userType": "external", "entrypoint": "sdk-cli",
		"cwd": w.session.Paths.Workspace, "sessionId": w.session.SessionID, "version": testedVersion,
	}
	if w.parent != "" {
		fields["parentUuid"] = w.parent
	}
	for k, v := range more {
		fields[k] = v
	}
	line, err := json.Marshal(fields)
	if err != nil {
		panic(fmt.Sprintf("a record of text is no JSON: %v", err)) // cannot happen: inputs of tools are JSON
	}
	w.text.Write(line)
	w.text.WriteByte('\n')
	w.parent = id
}

// answer writes a message of the model with one block.
func (w *writer) answer(i int, it handoff.Item, stop string, block map[string]any) {
	w.add(i, it, "assistant", map[string]any{
		"id": "msg_" + w.ids.Hex("message", i, 24), "type": "message", "role": "assistant", "model": w.agent,
		"content": []any{block}, "stop_reason": stop, "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": 0, "output_tokens": 0},
	}, map[string]any{"apiBlockIndex": 0})
}

// call writes a tool call and its result. A command becomes a call of the program's own command
// tool.
func (w *writer) call(i int, it handoff.Item) {
	id := "toolu_" + w.ids.Hex("call", i, 24)
	name, input := it.Call.Name, it.Call.Input
	if command, ok := it.Call.Command(); ok {
		name = "Bash"
		input, _ = json.Marshal(map[string]string{"command": command}) // marshaling a string never fails
	}
	w.answer(i, it, "tool_use", map[string]any{"type": "tool_use", "id": id, "name": name, "input": input})
	result := map[string]any{"type": "tool_result", "tool_use_id": id, "content": it.Call.Output}
	if it.Call.Failed {
		result["is_error"] = true
	}
	w.add(i, it, "user", map[string]any{"role": "user", "content": []any{result}},
		map[string]any{"toolUseResult": it.Call.Output, "sourceToolAssistantUUID": w.parent})
}
