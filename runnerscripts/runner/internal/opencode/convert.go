package opencode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

var _ handoff.Converter = Driver{}

// Convert writes another agent's conversation as an export, which the program imports.
func (Driver) Convert(s runnerscripts.Session, c handoff.Conversation) (runnerscripts.Transcript, error) {
	w := &exporter{session: s, ids: handoff.NewIDs(s.SessionID, c), agent: c.Agent, model: chosenModel(s), latest: time.Now()}
	w.id = w.newID("ses", c.Items[0].Time)
	start := w.now
	for _, it := range c.Items {
		w.add(it)
	}
	w.flush()
	info := map[string]any{
		"id": w.id, "slug": "agentenv", "projectID": "global", "directory": s.Paths.Workspace, "title": "agentenv",
		"version": testedVersion, "time": map[string]any{"created": start.UnixMilli(), "updated": w.now.UnixMilli()},
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"info":%s,"messages":[`, rawJSON(info))
	for i, m := range w.messages {
		b.WriteString(map[bool]string{true: "\n", false: ",\n"}[i == 0])
		b.Write(rawJSON(m))
	}
	b.WriteString("\n]}\n")
	return runnerscripts.Transcript{Main: b.String()}, nil
}

// Restores returns RestoredNative: the program imports the conversation.
func (Driver) Restores() runnerscripts.Restored { return runnerscripts.RestoredNative }

// chosenModel returns the model of the session's configuration. Otherwise the program would use
// the model of the last prompt.
func chosenModel(s runnerscripts.Session) *modelRef {
	name := s.Agent.Model
	if name == "" {
		var conf struct {
			Model string `json:"model"`
		}
		_ = json.Unmarshal(s.Agent.Config, &conf) // Setup has checked it
		name = conf.Model
	}
	ref, err := parseModel(name)
	if err != nil {
		return nil
	}
	return &ref
}

// exporter builds an export.
type exporter struct {
	session  runnerscripts.Session
	ids      handoff.IDs
	agent    string
	model    *modelRef
	latest   time.Time // upper bound of times, because the IDs of later messages must be greater
	id       string
	now      time.Time // the time of the last id
	stamp    uint64    // the time stamp in the last id
	count    int       // the number of ids
	prompt   string    // the id of the last prompt
	open     *exportedMessage
	messages []*exportedMessage
}

type exportedMessage struct {
	Info  map[string]any   `json:"info"`
	Parts []map[string]any `json:"parts"`
}

// newID returns a new id, which is greater than the previous one.
func (w *exporter) newID(prefix string, at time.Time) string {
	if at.After(w.latest) {
		at = w.latest
	}
	if at.After(w.now) {
		w.now = at
	}
	w.count++
	w.stamp = max(w.stamp+1, uint64(w.now.UnixMilli())<<12&(1<<48-1))
	return fmt.Sprintf("%s_%012x%s", prefix, w.stamp, w.ids.Hex(prefix, w.count, 14))
}

func (w *exporter) add(it handoff.Item) {
	if it.Kind == handoff.User {
		w.flush()
		w.prompt = w.newID("msg", it.Time)
		m := &exportedMessage{Info: map[string]any{
			"id": w.prompt, "sessionID": w.id, "role": roleUser, "agent": modeBuild, "time": map[string]any{"created": w.now.UnixMilli()},
		}}
		if w.model != nil {
			m.Info["model"] = map[string]any{"providerID": w.model.ProviderID, "modelID": w.model.ModelID}
		}
		w.part(m, it.Time, map[string]any{"type": partText, "text": it.Text})
		w.messages = append(w.messages, m)
		return
	}
	if w.open == nil || it.Kind == handoff.Agent {
		w.flush()
		w.begin(it.Time)
	}
	span := map[string]any{"start": w.now.UnixMilli(), "end": w.now.UnixMilli()}
	if it.Kind == handoff.Agent {
		w.part(w.open, it.Time, map[string]any{"type": partText, "text": it.Text, "time": span})
		return
	}
	w.part(w.open, it.Time, w.call(it.Call, span))
}

// begin starts an answer.
func (w *exporter) begin(at time.Time) {
	id := w.newID("msg", at)
	provider, model := "agentenv", w.agent
	if w.model != nil {
		provider, model = w.model.ProviderID, w.model.ModelID
	}
	w.open = &exportedMessage{Info: map[string]any{
		"id": id, "sessionID": w.id, "role": roleAssistant, "parentID": w.prompt, "agent": modeBuild, "mode": modeBuild,
		"providerID": provider, "modelID": model, "path": map[string]any{"cwd": w.session.Paths.Workspace, "root": "/"},
		"time": map[string]any{"created": w.now.UnixMilli(), "completed": w.now.UnixMilli()},
		"cost": 0, "tokens": noTokens(), "finish": "stop",
	}}
	w.part(w.open, at, map[string]any{"type": "step-start"})
}

// flush ends the open answer.
func (w *exporter) flush() {
	if w.open == nil {
		return
	}
	w.part(w.open, w.now, map[string]any{"type": partStepFinish, "reason": w.open.Info["finish"], "cost": 0, "tokens": noTokens()})
	w.messages = append(w.messages, w.open)
	w.open = nil
}

func (w *exporter) part(m *exportedMessage, at time.Time, p map[string]any) {
	p["id"], p["messageID"], p["sessionID"] = w.newID("prt", at), m.Info["id"], w.id
	m.Parts = append(m.Parts, p)
}

// call returns a tool call with its result. A command becomes a call of the program's own tool for
// commands.
func (w *exporter) call(call *handoff.Call, span map[string]any) map[string]any {
	w.open.Info["finish"] = "tool-calls"
	name, input := call.Name, call.Input
	if command, ok := call.Command(); ok {
		name, input = "bash", rawJSON(map[string]string{"command": command, "description": call.Title})
	}
	state := map[string]any{
		"status": toolCompleted, "input": input, "output": call.Output, "title": call.Title, "metadata": map[string]any{}, "time": span,
	}
	if call.Failed {
		state = map[string]any{"status": toolError, "input": input, "error": call.Output, "time": span}
	}
	return map[string]any{"type": partTool, "tool": name, "callID": "call_" + w.ids.Hex("call", w.count, 24), "state": state}
}

func noTokens() map[string]any {
	return map[string]any{"input": 0, "output": 0, "reasoning": 0, "cache": map[string]any{"read": 0, "write": 0}}
}
