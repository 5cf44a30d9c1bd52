package agentmcp

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// report says how far a session is.
type report struct {
	SessionID string `json:"session_id"`
	Agent     string `json:"agent" jsonschema:"its name in list_agent_blueprints"`
	Status    string `json:"status" jsonschema:"running, waiting_for_permission, completed, interrupted, failed or new"`
	// Sandbox says whether it has one now.
	Sandbox bool   `json:"has_sandbox"`
	Title   string `json:"title,omitempty"`
	Result  string `json:"result,omitempty" jsonschema:"what the agent has said last"`
	Error   string `json:"error,omitempty"`
	Advice  string `json:"advice,omitempty"`
	Usage   *usage `json:"usage,omitempty"`
}

type usage struct {
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CostUSD      float64 `json:"cost_usd,omitempty"`
}

// The statuses.
const (
	statusRunning     = "running"
	statusWaiting     = "waiting_for_permission"
	statusCompleted   = "completed"
	statusInterrupted = "interrupted"
	statusFailed      = "failed"
	statusNew         = "new"
)

// report reads how far a session is. With result it has what the agent has said.
func (f *family) report(ctx context.Context, id, name string, result bool) (report, error) {
	r := report{SessionID: id, Agent: name}
	conv, err := session.Reduce(f.host().Store().Events(ctx, id, 1))
	if err != nil {
		return r, fmt.Errorf("read the session %s: %w", id, err)
	}
	r.Title, r.Sandbox = conv.Title, conv.Environment.Status == session.EnvironmentReady
	if u := conv.Usage; u != (runnerscripts.Usage{}) {
		r.Usage = &usage{u.TotalInput(), u.OutputTokens, u.CostUSD}
	}
	if len(conv.Queries) == 0 {
		r.Status = statusNew
		return r, nil
	}
	last := conv.Queries[len(conv.Queries)-1]
	switch {
	case len(conv.Pending) > 0:
		r.Status = statusWaiting
		r.Advice = "a user must answer: " + conv.Pending[0].ToolCall.Title
	case last.Status == session.QueryQueued, last.Status == session.QueryRunning:
		r.Status = statusRunning
		r.Advice = "get_agent_session_result waits for the result"
	case last.Status == session.QueryFailed:
		r.Status, r.Error = statusFailed, "it says no reason"
		if last.Failure != nil {
			r.Error = last.Failure.Message
		}
	case last.StopReason == runnerscripts.StopCancelled:
		r.Status = statusInterrupted
	default:
		r.Status = statusCompleted
	}
	if result && r.Status != statusRunning {
		r.Result = resultOf(conv, last.ID)
	}
	return r, nil
}

// resultOf returns what the agent has said at the end of a query, cut to the limit.
func resultOf(conv *session.Conversation, query string) string {
	var texts []string
	for _, b := range conv.Blocks {
		switch {
		case b.QueryID != query:
		case b.Kind == session.BlockTool:
			texts = nil
		case b.Kind == session.BlockAgent && strings.TrimSpace(b.Text) != "":
			texts = append(texts, strings.TrimSpace(b.Text))
		}
	}
	return cut(strings.Join(texts, "\n\n"), maxResult)
}

// cut shortens a text to n characters, and says so in the text.
func cut(text string, n int) string {
	all := utf8.RuneCountInString(text)
	if all <= n {
		return text
	}
	return fmt.Sprintf("%s\n\n[agentenv: cut after %d of %d characters; ask the agent for the rest, or for a shorter answer]", string([]rune(text)[:n]), n, all)
}

// line is an event in the words of the tools.
type line struct {
	Event uint64 `json:"event" jsonschema:"its number; give the last one as after_event to go on"`
	Kind  string `json:"kind" jsonschema:"prompt, message, tool, permission, sandbox, completed or failed"`
	Text  string `json:"text"`
}

// The kinds of lines.
const (
	kindPrompt     = "prompt"
	kindMessage    = "message"
	kindTool       = "tool"
	kindPermission = "permission"
	kindSandbox    = "sandbox"
	kindCompleted  = "completed"
	kindFailed     = "failed"
)

// progressing are the kinds that are reported while a call waits.
var progressing = []string{kindTool, kindPermission, kindSandbox}

// lineOf returns the line for an event; one without a kind for an event that has none.
func lineOf(ev runnerscripts.Event) line {
	l := line{Event: ev.Seq}
	set := func(kind, text string) { l.Kind, l.Text = kind, text }
	switch p := ev.Value().(type) {
	case *runnerscripts.QueryStarted:
		if ev.Type == runnerscripts.TypeQueryQueued {
			set(kindPrompt, p.Prompt)
		}
	case *runnerscripts.ContentChunk:
		if ev.Type == runnerscripts.TypeAgentMessage && (ev.ConversationID == "" || ev.ConversationID == runnerscripts.MainConversation) {
			set(kindMessage, p.Content.Text)
		}
	case *runnerscripts.ToolCall:
		if ev.Type == runnerscripts.TypeToolCall {
			set(kindTool, firstOf(p.Title, p.Name))
		}
	case *runnerscripts.PermissionRequest:
		set(kindPermission, firstOf(p.ToolCall.Title, p.ToolCall.Name))
	case *runnerscripts.EnvironmentInfo:
		set(kindSandbox, strings.TrimSpace(strings.TrimPrefix(string(ev.Type), "environment_")+" "+p.Message))
	case *runnerscripts.QueryCompleted:
		set(kindCompleted, string(p.StopReason))
	case *runnerscripts.QueryFailed:
		set(kindFailed, p.Message)
	}
	return l
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Limits of what follow returns at once.
const (
	maxLines    = 200
	maxLineText = 2000 // characters
	maxFollowed = maxResult
)

// lines are the events of a session after one, with adjacent messages in one line.
type lines struct {
	all  []line
	size int
	last uint64 // the number of the last event that was read
}

// add adds an event, and reports whether there is room for more.
func (l *lines) add(ev runnerscripts.Event) bool {
	next := lineOf(ev)
	l.last = ev.Seq
	switch n := len(l.all); {
	case next.Kind == "" || next.Text == "":
		return true
	case next.Kind == kindMessage && n > 0 && l.all[n-1].Kind == kindMessage:
		l.all[n-1].Event, l.all[n-1].Text = next.Event, l.all[n-1].Text+next.Text
	default:
		l.all = append(l.all, next)
	}
	l.size += len(next.Text)
	return len(l.all) < maxLines && l.size < maxFollowed
}

// texts returns the lines, each cut to its limit.
func (l *lines) texts() []line {
	for i := range l.all {
		l.all[i].Text = cut(strings.TrimSpace(l.all[i].Text), maxLineText)
	}
	return l.all
}

// follow returns the events of a session after one. If there are none and a query runs, it waits for one, for at most d.
func (f *family) follow(ctx context.Context, id string, c *child, after uint64, d time.Duration) (*lines, error) {
	var found lines
	found.last = after
	for ev, err := range f.host().Store().Events(ctx, id, after+1) {
		if err != nil {
			return nil, err
		}
		if !found.add(ev) {
			break
		}
	}
	if len(found.all) > 0 || c == nil || len(c.session.Turns()) == 0 {
		return &found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for ev, err := range c.session.Events(ctx, found.last+1) {
		if err != nil || !found.add(ev) || len(found.all) > 0 {
			break // an error of the store is there for the next call, too
		}
	}
	return &found, nil
}
