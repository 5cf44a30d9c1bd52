package codex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// record is a line of a rollout. Many types are irrelevant here.
type record struct {
	Timestamp time.Time       `json:"timestamp"`
	Type      string          `json:"type"`
	Payload   json.RawMessage `json:"payload"`
}

// payload has the fields of the records that are translated.
type payload struct {
	Type string `json:"type"`

	Item          json.RawMessage `json:"item"` // item_completed
	StartedAtMS   int64           `json:"started_at_ms"`
	CompletedAtMS int64           `json:"completed_at_ms"`

	CallID    string          `json:"call_id"` // of a tool call and its output
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`

	Info *struct { // token_count
		Last struct {
			TotalTokens int64 `json:"total_tokens"`
		} `json:"last_token_usage"`
		Window int64 `json:"model_context_window"`
	} `json:"info"`

	Cwd string `json:"cwd"` // turn_context

	DurationMS int64           `json:"duration_ms"` // task_complete, turn_aborted
	Error      json.RawMessage `json:"error"`
}

// history replays a rollout.
type history struct {
	*translator
	conv   string
	thread string
	cwd    string
	// subs are the rollouts of subagents, by thread.
	subs map[string]string
	// items are the IDs of the tool calls that have their own item, or were refused before they
	// were reported.
	items map[string]bool
}

// replay emits the conversation of a transcript, with the recorded times.
func replay(ctx context.Context, t runnerscripts.Transcript, tr *translator) error {
	h := &history{translator: tr, conv: runnerscripts.MainConversation, subs: map[string]string{}}
	for _, s := range t.Subagents {
		h.subs[s.ID] = s.Transcript
	}
	return h.replay(ctx, t.Main)
}

func (h *history) replay(ctx context.Context, rollout string) error {
	h.items = map[string]bool{}
	err := eachRecord(rollout, func(_ record, p payload) error {
		var i struct {
			ID string `json:"id"`
		}
		switch {
		case p.Type == "item_completed" && json.Unmarshal(p.Item, &i) == nil:
			h.items[i.ID] = true
		case refused(p.Output):
			h.items[p.CallID] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	return eachRecord(rollout, func(r record, p payload) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h.record(r, p)
		return h.subagents(ctx, p)
	})
}

// subagents replays the subagents that an item started, right after the item.
func (h *history) subagents(ctx context.Context, p payload) error {
	if p.Type != "item_completed" {
		return nil
	}
	i, err := storedItem(p.Item)
	if err != nil || i.Tool != toolSpawn {
		return nil // an unreadable item starts no subagent
	}
	for _, thread := range i.ReceiverThreadIDs {
		rollout, ok := h.subs[thread]
		delete(h.subs, thread)
		if !ok {
			continue
		}
		sub := &history{translator: h.translator, conv: i.ID, thread: thread, subs: h.subs}
		if err := sub.replay(ctx, rollout); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) record(r record, p payload) {
	switch r.Type {
	case "turn_context":
		h.cwd = p.Cwd
	case "event_msg":
		h.event(r.Timestamp, p)
	case "response_item":
		h.response(r.Timestamp, p)
	}
}

func (h *history) event(at time.Time, p payload) {
	switch p.Type {
	case "item_completed":
		if i, err := storedItem(p.Item); err == nil {
			h.finish(milliseconds(p.StartedAtMS, at), milliseconds(p.CompletedAtMS, at), h.conv, i)
		}
	case "token_count":
		if p.Info != nil && h.conv == runnerscripts.MainConversation {
			h.contextUse(at, p.Info.Last.TotalTokens, p.Info.Window)
		}
	case "task_started":
		h.endTurn(at, h.conv) // a crash may have ended the last turn
	case "task_complete", "turn_aborted":
		h.endTurn(at, h.conv)
		h.endSubagent(at, h.thread, p.Type == "task_complete" && isNull(p.Error), p.DurationMS)
	}
}

// refused reports whether the output of a tool call is a refusal by a hook or a command rule.
func refused(output json.RawMessage) bool {
	var text string
	return json.Unmarshal(output, &text) == nil &&
		(strings.HasPrefix(text, "Command blocked by PreToolUse hook") || strings.Contains(text, "rejected: policy forbids"))
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// response translates an exchange with the model: plans, and tool calls that never finished.
func (h *history) response(at time.Time, p payload) {
	switch {
	case p.Type == "function_call" && p.Name == "update_plan":
		var in struct {
			Plan []planStep `json:"plan"`
		}
		if json.Unmarshal([]byte(p.Arguments), &in) == nil {
			h.plan(at, h.conv, in.Plan)
		}
	case h.items[p.CallID]:
	case p.Type == "function_call", p.Type == "custom_tool_call":
		if i, ok := h.lostCall(p); ok {
			h.startCall(at, h.conv, i)
		}
	case p.Type == "function_call_output", p.Type == "custom_tool_call_output":
		if h.open(h.conv, p.CallID) >= 0 {
			h.endCall(at, h.conv, item{ID: p.CallID, Type: itemFiles, Status: "declined"})
		}
	}
}

// lostCall returns an item for a rejected or interrupted tool call. The rollout has no item for it.
func (h *history) lostCall(p payload) (item, bool) {
	i := item{ID: p.CallID, Type: itemCommand, Cwd: h.cwd}
	switch p.Name {
	case "exec_command":
		var in struct {
			Cmd     string `json:"cmd"`
			Workdir string `json:"workdir"`
		}
		if json.Unmarshal([]byte(p.Arguments), &in) != nil {
			return item{}, false
		}
		i.Command = in.Cmd
		if in.Workdir != "" {
			i.Cwd = in.Workdir
		}
		return i, true
	case "apply_patch":
		i.Type, i.Changes = itemFiles, patchChanges(p.Input, h.cwd)
		return i, true
	}
	return item{}, false
}

// storedItem decodes an item of a rollout. The spelling of its fields, and the form of a few,
// differ from live items.
func storedItem(data json.RawMessage) (item, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return item{}, err
	}
	live := map[string]any{}
	for k, v := range fields {
		live[camel(k)] = v
	}
	var typ string
	if err := json.Unmarshal(fields["type"], &typ); err != nil || typ == "" {
		return item{}, fmt.Errorf("an item without a type: %w", err)
	}
	typ = strings.ToLower(typ[:1]) + typ[1:]
	live["type"] = typ
	if err := reshape(typ, fields, live); err != nil {
		return item{}, err
	}
	var i item
	err := json.Unmarshal(jsonOf(live), &i)
	return i, err
}

// camel converts a name in snake_case to the camelCase of the live protocol.
func camel(name string) string {
	first, rest, _ := strings.Cut(name, "_")
	for rest != "" {
		var word string
		word, rest, _ = strings.Cut(rest, "_")
		if word != "" {
			first += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return first
}

// reshape converts the fields whose form differs in rollouts.
func reshape(typ string, stored map[string]json.RawMessage, live map[string]any) error {
	switch typ {
	case itemAgent:
		var parts []struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(stored["content"], &parts); err != nil {
			return err
		}
		var text strings.Builder
		for _, p := range parts {
			text.WriteString(p.Text)
		}
		live["text"] = text.String()
	case itemReasoning:
		live["summary"], live["content"] = stored["summary_text"], stored["raw_content"]
	case itemCommand:
		var c storedCommand
		if err := json.Unmarshal(jsonOf(stored), &c); err != nil {
			return err
		}
		c.reshape(live)
	case itemFiles:
		var changes map[string]storedChange
		if err := json.Unmarshal(stored["changes"], &changes); err != nil {
			return err
		}
		var list []change
		for path, c := range changes {
			list = append(list, c.live(path))
		}
		live["changes"] = list
	case itemCollab:
		var tool string
		if err := json.Unmarshal(stored["tool"], &tool); err != nil {
			return err
		}
		live["tool"] = camel(tool)
	}
	return nil
}

type storedCommand struct {
	Command []string `json:"command"`
	Cwd     string   `json:"cwd"`
	Parsed  []struct {
		Type string `json:"type"`
		Cmd  string `json:"cmd"`
		Path string `json:"path"`
	} `json:"parsed_cmd"`
}

func (c storedCommand) reshape(live map[string]any) {
	live["command"] = script(c.Command, strings.Join(c.Command, " "))
	live["cwd"] = c.Cwd
	if u, err := url.Parse(c.Cwd); err == nil && u.Scheme == "file" {
		live["cwd"] = u.Path
	}
	var actions []action
	for _, p := range c.Parsed {
		actions = append(actions, action{Type: camel(p.Type), Command: p.Cmd, Path: p.Path})
	}
	live["commandActions"] = actions
}

// storedChange is the change of one file in a rollout.
type storedChange struct {
	Type     string  `json:"type"`
	Content  string  `json:"content"`
	Diff     string  `json:"unified_diff"`
	MovePath *string `json:"move_path"`
}

func (c storedChange) live(path string) change {
	out := change{Path: path, Kind: changeKind{Type: c.Type}, Diff: c.Diff}
	if c.Type != "update" {
		out.Diff = c.Content
	}
	if c.MovePath != nil {
		out.Kind.MovePath = *c.MovePath
	}
	return out
}

// milliseconds converts a Unix time in milliseconds. It returns at for zero.
func milliseconds(ms int64, at time.Time) time.Time {
	if ms == 0 {
		return at
	}
	return time.UnixMilli(ms).UTC()
}

// eachRecord calls handle for each record of a rollout. It skips invalid lines, such as a last line
// that a crash has truncated.
func eachRecord(rollout string, handle func(record, payload) error) error {
	lines := runnerscripts.NewLineReader(strings.NewReader(rollout), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the transcript: %w", err)
		}
		var r record
		var p payload
		if json.Unmarshal(line, &r) != nil || json.Unmarshal(r.Payload, &p) != nil {
			continue
		}
		if err := handle(r, p); err != nil {
			return err
		}
	}
}
