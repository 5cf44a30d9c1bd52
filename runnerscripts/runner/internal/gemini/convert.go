package gemini

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

var _ handoff.Converter = Driver{}

// Convert writes another agent's conversation as a session file.
func (Driver) Convert(s runnerscripts.Session, c handoff.Conversation) (runnerscripts.Transcript, error) {
	workspace, err := realWorkspace(s)
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	ids := handoff.NewIDs(s.SessionID, c)
	var w writer
	start := handoff.Stamp(c.Items[0].Time)
	w.line(map[string]any{
		"sessionId": ids.UUID("session", 0), "projectHash": fmt.Sprintf("%x", sha256.Sum256([]byte(workspace))),
		"startTime": start, "lastUpdated": start, "kind": "main",
	})
	for i, it := range c.Items {
		w.item(ids, i, it, c.Agent)
	}
	return runnerscripts.Transcript{Main: w.String()}, nil
}

// Restores returns RestoredConverted: the driver writes the program's own files.
func (Driver) Restores() runnerscripts.Restored { return runnerscripts.RestoredConverted }

// writer builds the text of a session file.
type writer struct{ bytes.Buffer }

func (w *writer) line(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("a record of text is no JSON: %v", err)) // cannot happen: inputs of tools are JSON
	}
	w.Write(append(data, '\n'))
}

// record writes a message.
func (w *writer) record(id, typ string, at time.Time, fields map[string]any) {
	fields["id"], fields["type"], fields["timestamp"] = id, typ, handoff.Stamp(at)
	w.line(fields)
}

func (w *writer) item(ids handoff.IDs, i int, it handoff.Item, from string) {
	id := ids.Hex("message", i, 32)
	switch it.Kind {
	case handoff.User:
		w.record(id, "user", it.Time, map[string]any{"content": []any{map[string]any{"text": it.Text}}})
	case handoff.Agent:
		w.record(id, "gemini", it.Time, map[string]any{"content": it.Text, "thoughts": []any{}, "model": from})
	case handoff.Tool:
		w.call(ids, i, it, from)
	}
}

// call writes a tool call and its result. A command becomes a call of the program's own command
// tool.
func (w *writer) call(ids handoff.IDs, i int, it handoff.Item, from string) {
	name, args := it.Call.Name, it.Call.Input
	if command, ok := it.Call.Command(); ok {
		name = shellTool
		// A string always has a JSON form.
		args, _ = json.Marshal(map[string]string{"command": command})
	}
	id := fmt.Sprintf("%s__%s", name, ids.Hex("call", i, 16))
	status, key := "success", "output"
	if it.Call.Failed {
		status, key = "error", "error"
	}
	result := []any{map[string]any{"functionResponse": map[string]any{
		"id": id, "name": name, "response": map[string]any{key: it.Call.Output},
	}}}
	w.record(ids.Hex("message", i, 32), "gemini", it.Time, map[string]any{
		"content": "", "thoughts": []any{}, "model": from,
		"toolCalls": []any{map[string]any{
			"id": id, "name": name, "args": args, "result": result, "status": status, "timestamp": handoff.Stamp(it.Time),
			"resultDisplay": it.Call.Output, "description": it.Call.Title, "displayName": name,
		}},
	})
}
