package gemini

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
)

// history is the content of a session file. In the file,
//
//   - a record with the ID of an earlier one replaces it,
//   - {"$set":{"messages":[...]}} replaces all messages that the program remembers. The program writes
//     it when it loads a session, when it takes back a prompt, and when it shortens its history, which
//     it has written again under new IDs before,
//   - one record has all tool calls of a process: it was begun by the first one, and grows. A call
//     belongs to the message before the line in which it appears first,
//   - a result is twice there: in its call, and as the message of the user that has sent it to the
//     model. The program makes a response of both when it loads the session, and the model's API
//     refuses two responses to a call. A rejected call is there only as such a message.
//
// A history has each message once, with its calls, and each call has one result. [history.text] writes
// such a file.
type history struct {
	id, start, kind string // of the session
	header          string // the line with them
	set             map[string]json.RawMessage
	// messages are all messages in the order of their first records.
	messages []*message
	// sent has the IDs of the calls whose results were sent to the model.
	sent map[string]bool
	last string // the type of the last record of a message
}

// message is a message of a session.
type message struct {
	entry
	line  string // the JSON of its last record
	calls []*toolCall
	// forgotten says that the program does not remember the message. It is only for the transcript.
	forgotten bool
	// hidden says that the message is only for the program: it has no record or repeats an earlier
	// message.
	hidden bool
	// dropped says that others have all of the message.
	dropped bool
	changed bool // line is not valid any more
}

// entry is a line of a session file.
type entry struct {
	SessionID string            `json:"sessionId"` // of the first line
	StartTime string            `json:"startTime"`
	Kind      string            `json:"kind"`
	ID        string            `json:"id"` // of a message
	Time      string            `json:"timestamp"`
	Type      string            `json:"type"` // "user", "gemini", ...
	Content   content           `json:"content"`
	Thoughts  []thought         `json:"thoughts"`
	ToolCalls []json.RawMessage `json:"toolCalls"`
	Tokens    *tokens           `json:"tokens"`
	Set       json.RawMessage   `json:"$set"`
	// Forgotten and Hidden are this driver's own. The program ignores them.
	Forgotten json.RawMessage `json:"agentenvForgotten"`
	Hidden    bool            `json:"agentenvHidden"`
}

// content is a list of parts. Its JSON may also be one part or a string.
type content []part

type part struct {
	Text             string            `json:"text"`
	Thought          bool              `json:"thought"`
	FunctionResponse *functionResponse `json:"functionResponse"`
	FunctionCall     json.RawMessage   `json:"functionCall"`
}

type functionResponse struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Response json.RawMessage `json:"response"`
}

func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*c = content{{Text: s}}
		return nil
	}
	if len(data) > 0 && data[0] == '{' {
		*c = make(content, 1)
		return json.Unmarshal(data, &(*c)[0])
	}
	return json.Unmarshal(data, (*[]part)(c))
}

type thought struct {
	Subject     string `json:"subject"`
	Description string `json:"description"`
}

type tokens struct {
	Input    int64 `json:"input"` // includes the cached tokens
	Output   int64 `json:"output"`
	Cached   int64 `json:"cached"`
	Thoughts int64 `json:"thoughts"`
}

// text returns the text of a message.
func (c content) text() string {
	var b strings.Builder
	for _, p := range c {
		if !p.Thought {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// prompt returns the user's text, if the message has any.
func (m *message) prompt() (string, bool) {
	words := m.Content
	// A subagent's prompt may follow its loaded context.
	if len(words) > 1 && strings.HasPrefix(strings.TrimSpace(words[0].Text), "<loaded_context>") {
		words = words[1:]
	}
	text, _, _ := strings.Cut(words.text(), "@"+acp.AttachmentURL) // the program puts attachments behind the prompt
	if m.Type != "user" || m.hidden || m.dropped || strings.TrimSpace(text) == "" || hasAnyPrefix(strings.TrimSpace(text), programWords...) {
		return "", false
	}
	return text, true
}

// sessionContext starts the message with which the program begins each session, also a loaded one.
const sessionContext = "<session_context>"

// programWords start messages that the program itself sends to the model as the user.
var programWords = []string{
	sessionContext, "<hook_context>",
	"System: Potential loop detected.", "[System: You previously generated thoughts ",
	"You have stopped calling tools without finishing. ", // to a subagent
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// updates returns the number of updates with which the program repeats a message that it remembers.
func (m *message) updates() int {
	if m.forgotten || m.dropped {
		return 0
	}
	n := 0
	for _, p := range m.Content {
		if strings.TrimSpace(p.Text) != "" {
			n = 1
		}
	}
	switch m.Type {
	case "user":
		return n
	case "gemini":
		return n + len(m.Thoughts) + len(m.calls)
	}
	return 0
}

// parse reads the text of a session file. It ignores invalid lines: a crash may have truncated one,
// and a newer version of the program may write others.
func parse(text string) history {
	r := reader{
		history: history{set: map[string]json.RawMessage{}, sent: map[string]bool{}},
		byID:    map[string]*message{}, calls: map[string]*toolCall{},
	}
	for line := range strings.Lines(text) {
		r.line(strings.TrimSuffix(line, "\n"))
	}
	r.settle()
	return r.history
}

// reader reads a session file.
type reader struct {
	history
	byID  map[string]*message
	calls map[string]*toolCall
}

func (r *reader) line(line string) {
	var e entry
	if json.Unmarshal([]byte(line), &e) != nil {
		return
	}
	switch {
	case e.Forgotten != nil:
		inner := string(e.Forgotten)
		if json.Unmarshal(e.Forgotten, &e) == nil && r.byID[e.ID] == nil {
			r.message(e, inner).forgotten = true
		}
	case e.ID != "":
		r.last = e.Type
		r.message(e, line)
	case e.Set != nil:
		r.replace(e.Set)
	case e.SessionID != "" && r.id == "":
		r.id, r.start, r.kind, r.header = e.SessionID, e.StartTime, e.Kind, line
	}
}

// message reads the record of a message.
func (r *reader) message(e entry, line string) *message {
	m, known := r.byID[e.ID]
	if !known {
		m = &message{}
		r.byID[e.ID] = m
		if turn := r.turn(); turn != nil && len(turn.calls) == 0 && e.hasOnlyCalls() {
			known, m.dropped = true, true // the record of the calls of a process
		} else {
			r.messages = append(r.messages, m)
		}
	}
	before := m.ToolCalls
	m.entry, m.line, m.hidden = e, line, m.hidden || e.Hidden
	for i, raw := range e.ToolCalls {
		if known && i < len(before) && bytes.Equal(raw, before[i]) {
			continue
		}
		r.call(m, !known, raw)
	}
	return m
}

// hasOnlyCalls reports whether a record has calls and nothing else.
func (e entry) hasOnlyCalls() bool {
	return e.Type == "gemini" && len(e.ToolCalls) > 0 && len(e.Thoughts) == 0 && e.Tokens == nil &&
		!slices.ContainsFunc(e.Content, func(p part) bool { return p.Text != "" || p.FunctionCall != nil })
}

// turn returns the last message if it is the agent's and the program remembers it, else nil.
func (r *reader) turn() *message {
	if len(r.messages) == 0 {
		return nil
	}
	if last := r.messages[len(r.messages)-1]; last.Type == "gemini" && !last.forgotten {
		return last
	}
	return nil
}

// call reads a call in a record of a message.
func (r *reader) call(m *message, own bool, raw json.RawMessage) {
	var head struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return
	}
	c, known := r.calls[head.ID]
	read := toolCall{raw: raw}
	if json.Unmarshal(raw, &read) != nil {
		return
	}
	if known && !own {
		*c = read
		return
	}
	if turn := r.turn(); !own && turn != nil {
		m = turn
	}
	m.calls = append(m.calls, &read)
	r.calls[head.ID] = &read
}

// replace reads the value of "$set".
func (r *reader) replace(raw json.RawMessage) {
	var set map[string]json.RawMessage
	if json.Unmarshal(raw, &set) != nil {
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(set["messages"], &list) == nil && list != nil {
		r.remember(list)
	}
	for key, value := range set {
		switch key {
		case "messages", "lastUpdated", "sessionId":
		default:
			r.set[key] = value
		}
	}
}

// remember replaces the messages that the program remembers.
func (r *reader) remember(list []json.RawMessage) {
	kept, next := map[string]bool{}, 0
	var ids []string
	for _, raw := range list {
		var e entry
		var head struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(raw, &head) != nil || head.ID == "" {
			continue
		}
		kept[head.ID], ids = true, append(ids, head.ID)
		if m := r.byID[head.ID]; m != nil {
			next = max(next, slices.Index(r.messages, m)+1)
		} else if json.Unmarshal(raw, &e) == nil {
			m := r.message(e, string(raw))
			m.hidden = true
			r.messages = slices.Insert(r.messages[:len(r.messages)-1], next, m)
			next++
		}
	}
	r.hideRepeated(ids)
	for _, m := range r.messages {
		m.forgotten = m.forgotten || !kept[m.ID]
	}
}

// hideRepeated hides the messages that only repeat earlier ones, if the program has written the
// messages with these IDs to replace all earlier ones. Messages with a new text, such as a summary,
// are not repeated.
func (r *reader) hideRepeated(ids []string) {
	type words struct{ typ, text string }
	var before []*message // that the program remembers
	for _, m := range r.messages {
		if !m.forgotten {
			before = append(before, m)
		}
	}
	n := len(before) - len(ids)
	if n <= 0 || !slices.EqualFunc(before[n:], ids, func(m *message, id string) bool { return m.ID == id }) {
		return // the program has dropped the last messages, or none
	}
	said := func(m *message) words { return words{m.Type, strings.TrimSpace(m.Content.text())} }
	earlier := map[words]bool{}
	for _, m := range before[:n] {
		earlier[said(m)] = true
	}
	for _, m := range before[n:] {
		m.hidden = m.hidden || earlier[said(m)]
	}
}
