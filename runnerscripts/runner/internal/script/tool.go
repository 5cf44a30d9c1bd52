package script

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The names of the tools.
const (
	toolRun   = "run"
	toolWrite = "write"
)

// errMaxTurns ends a turn that used all its model turns.
var errMaxTurns = errors.New("all turns are used")

// tool is one use of a tool.
type tool interface {
	name() string
	// call describes the use.
	call(id string) runnerscripts.ToolCall
	// withInput returns the same tool with another input.
	withInput(raw json.RawMessage) (tool, error)
	// use returns how the call ended: status, content, locations and output.
	use(ctx context.Context, c *conversation) runnerscripts.ToolCall
}

func (t *turn) tool(s runnerscripts.ScenarioStep) tool {
	if s.Write != nil {
		return write{Path: t.fill.Replace(s.Write.Path), Content: t.fill.Replace(s.Write.Content)}
	}
	args := make([]string, len(s.Run))
	for i, a := range s.Run {
		args[i] = t.fill.Replace(a)
	}
	return command{Command: args}
}

// use performs one tool call: pending, a permission request if ask is set, in progress,
// completed or failed. A failed tool does not end the turn.
func (t *turn) use(ctx context.Context, s runnerscripts.ScenarioStep, ask bool) error {
	if t.c.maxTurns > 0 && t.tools >= t.c.maxTurns {
		return errMaxTurns
	}
	t.tools++
	id := t.name + "-tool-" + strconv.Itoa(t.tools)
	tl := t.tool(s)
	call := tl.call(id)
	call.Status = runnerscripts.ToolPending
	if err := t.report(runnerscripts.TypeToolCall, call); err != nil {
		return err
	}
	a := answer{kind: runnerscripts.AllowOnce, tool: tl}
	if ask {
		var err error
		if a, err = t.ask(ctx, id, tl); err != nil {
			return errors.Join(err, t.update(id, failed("interrupted")))
		}
	}
	if !a.kind.Allows() {
		if err := t.update(id, rejection(a)); err != nil || !a.decision.Interrupt {
			return err
		}
		return t.c.Interrupt(ctx)
	}
	progress := runnerscripts.ToolCall{Status: runnerscripts.ToolInProgress}
	if len(a.decision.UpdatedInput) > 0 {
		progress = a.tool.call(id)
		progress.Status = runnerscripts.ToolInProgress
	}
	if err := t.update(id, progress); err != nil {
		return err
	}
	end := a.tool.use(ctx, t.c)
	if err := t.update(id, end); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (t *turn) update(id string, u runnerscripts.ToolCall) error {
	u.ToolCallID = id
	return t.report(runnerscripts.TypeToolCallUpdate, u)
}

// failed returns the end of a failed call.
func failed(msg string) runnerscripts.ToolCall {
	return runnerscripts.ToolCall{
		Status: runnerscripts.ToolFailed, Content: textContent(msg),
		RawOutput: mustMarshal(map[string]string{"error": msg}),
	}
}

func textContent(text string) []runnerscripts.ToolCallContent {
	return []runnerscripts.ToolCallContent{{
		Type: "content", Content: &runnerscripts.Content{Type: "text", Text: text},
	}}
}

// strictInput decodes an input and refuses unknown fields.
func strictInput(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// mustMarshal marshals values of strings and numbers, which never fail to marshal.
func mustMarshal(v any) json.RawMessage {
	raw, err := marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// marshal is json.Marshal without the escapes of <, > and &, as in events.
func marshal(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
