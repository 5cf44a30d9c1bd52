package acpserver

import (
	"cmp"
	"encoding/json"
	"strings"

	acp "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/boundedmap"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// updater converts the events of a session to updates for the client. It must be used by one
// goroutine at a time.
type updater struct {
	paths   *paths
	log     hclog.Logger
	choices *choices

	// The sent text of each block, and the sent tool calls. Entries that these maps drop may be
	// sent again.
	blocks boundedmap.Map[*strings.Builder]
	tools  boundedmap.Map[struct{}]
	last   place // the block of the last text

	context runnerscripts.UsageUpdate // the last one of the agent's own conversation
	cost    float64                   // of the session so far, in US dollars
}

// maxSent is how many bytes an updater remembers in each map.
const maxSent = 16 << 20

// place is a block of text; the zero value is none.
type place struct {
	kind  runnerscripts.EventType
	block string
}

func newUpdater(p *paths, log hclog.Logger, of *choices) *updater {
	t := &updater{paths: p, log: log, choices: of}
	t.blocks.Max, t.tools.Max = maxSent, maxSent
	return t
}

// update returns the update for an event. It returns false for an event without one.
func (t *updater) update(ev runnerscripts.Event) (acp.SessionUpdate, bool) {
	switch ev.Type {
	case runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought:
		return t.text(ev)
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		return t.toolCall(ev)
	case runnerscripts.TypeQueryStarted:
		t.last = place{} // the answer to another prompt is another message
	case runnerscripts.TypePlan:
		p, ok := payload[runnerscripts.Plan](t, ev)
		return acp.UpdatePlan(planEntries(p)...), ok && isMain(ev)
	case runnerscripts.TypeCommands:
		u, ok := payload[acp.SessionAvailableCommandsUpdate](t, ev)
		if u.AvailableCommands == nil {
			u.AvailableCommands = []acp.AvailableCommand{}
		}
		return acp.SessionUpdate{AvailableCommandsUpdate: &u}, ok
	case runnerscripts.TypeModeUpdate:
		m, ok := payload[runnerscripts.ModeUpdate](t, ev)
		return currentMode(m.CurrentModeID), ok && t.choices.set(m.CurrentModeID, "", nil)
	case runnerscripts.TypeOptionsChanged:
		o, ok := payload[runnerscripts.OptionsChanged](t, ev)
		return currentMode(o.Mode), ok && t.choices.set(o.Mode, o.Model, nil)
	case runnerscripts.TypeSessionInitialized:
		i, ok := payload[runnerscripts.SessionInitialized](t, ev)
		return currentMode(i.Mode), ok && t.choices.set(i.Mode, i.Model, i.Models)
	case runnerscripts.TypeUsageUpdate:
		used, ok := payload[runnerscripts.UsageUpdate](t, ev)
		if !ok || !isMain(ev) {
			return acp.SessionUpdate{}, false
		}
		t.context = used
		return t.usage()
	case runnerscripts.TypeSessionInfo:
		i, ok := payload[runnerscripts.SessionInfo](t, ev)
		return acp.SessionUpdate{SessionInfoUpdate: &acp.SessionSessionInfoUpdate{Title: given(visible.Line(i.Title))}},
			ok && i.Title != "" && isMain(ev)
	case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed:
		t.note(ev)
		return t.spent(ev)
	}
	t.note(ev)
	return acp.SessionUpdate{}, false
}

// note logs an event that the protocol has no update for.
func (t *updater) note(ev runnerscripts.Event) {
	switch ev.Type {
	case runnerscripts.TypeUserMessage, runnerscripts.TypeTranscriptChanged:
	case runnerscripts.TypeError, runnerscripts.TypeEnvironmentError:
		t.log.Warn("something went wrong", "session", ev.SessionID, "payload", string(ev.Payload))
	default:
		t.log.Debug("not sent to the editor", "session", ev.SessionID, "type", string(ev.Type), "payload", string(ev.Payload))
	}
}

func payload[T any](t *updater, ev runnerscripts.Event) (T, bool) {
	v, err := runnerscripts.Payload[T](ev)
	if err != nil {
		t.log.Warn("an event cannot be read", "type", string(ev.Type), "error", err)
	}
	return v, err == nil
}

// isMain reports whether an event belongs to the agent's own conversation. The conversation of a
// subagent is not sent: the result of its tool call reports it.
func isMain(ev runnerscripts.Event) bool {
	return ev.ConversationID == "" || ev.ConversationID == runnerscripts.MainConversation
}

func currentMode(mode string) acp.SessionUpdate {
	return acp.SessionUpdate{CurrentModeUpdate: &acp.SessionCurrentModeUpdate{CurrentModeId: acp.SessionModeId(mode)}}
}

// prompt returns the update for the prompt of a query.
func (t *updater) prompt(ev runnerscripts.Event) (acp.SessionUpdate, bool) {
	q, ok := payload[runnerscripts.QueryStarted](t, ev)
	if !ok {
		return acp.SessionUpdate{}, false
	}
	return t.said(ev.QueryID, q.Prompt)
}

// said returns the update for a prompt.
func (t *updater) said(query, prompt string) (acp.SessionUpdate, bool) {
	t.last = place{} // the answer to another prompt is another message
	u := acp.UpdateUserMessage(acp.TextBlock(prompt))
	u.UserMessageChunk.MessageId = given(query)
	return u, prompt != ""
}

// used sets what the session has used so far.
func (t *updater) used(state session.State) {
	t.context = runnerscripts.UsageUpdate{Used: state.ContextUsed, Size: state.ContextSize}
	t.cost = state.Usage.CostUSD
}

// usage returns the update for what the session has used so far.
func (t *updater) usage() (acp.SessionUpdate, bool) {
	u := &acp.SessionUsageUpdate{Size: int(t.context.Size), Used: int(t.context.Used)}
	if t.cost > 0 {
		u.Cost = &acp.Cost{Amount: t.cost, Currency: "USD"}
	}
	return acp.SessionUpdate{UsageUpdate: u}, t.context.Size > 0
}

// spent adds the cost of a query that has ended. Both ends of a query carry its usage under the same name.
func (t *updater) spent(ev runnerscripts.Event) (acp.SessionUpdate, bool) {
	p, ok := payload[struct {
		Usage runnerscripts.Usage `json:"usage"`
	}](t, ev)
	t.cost += p.Usage.CostUSD
	u, known := t.usage()
	return u, ok && known && p.Usage.CostUSD > 0
}

// messageID returns the ID of a message. It is the same whenever the session is loaded.
func messageID(kind runnerscripts.EventType, block string) *string {
	if block == "" {
		return nil
	}
	return given(uuid.NewSHA1(uuid.Nil, []byte(string(kind)+" "+block)).String())
}

// text returns the new part of a message or thought. The editor joins all chunks, so a block
// that directly follows another one starts a paragraph.
func (t *updater) text(ev runnerscripts.Event) (acp.SessionUpdate, bool) {
	c, ok := payload[runnerscripts.ContentChunk](t, ev)
	if !ok || !isMain(ev) {
		return acp.SessionUpdate{}, false
	}
	block, ok := contentBlock(c.Content)
	if c.Content.Type == "text" {
		news := t.news(c)
		at := place{ev.Type, c.BlockID}
		if ok = news != ""; ok {
			if t.last.kind == ev.Type && t.last != at {
				news = "\n\n" + news
			}
			t.last = at
		}
		block = acp.TextBlock(news)
	}
	id := messageID(ev.Type, c.BlockID)
	if ev.Type == runnerscripts.TypeAgentThought {
		u := acp.UpdateAgentThought(block)
		u.AgentThoughtChunk.MessageId = id
		return u, ok
	}
	u := acp.UpdateAgentMessage(block)
	u.AgentMessageChunk.MessageId = id
	return u, ok
}

// news returns the part of a block that the editor does not have yet. Sent text cannot be
// withdrawn: a block whose beginning has changed is sent again as a whole.
func (t *updater) news(c runnerscripts.ContentChunk) string {
	delivered, known := t.blocks.Get(c.BlockID)
	if !known {
		delivered = new(strings.Builder)
	}
	defer func() { t.blocks.Put(c.BlockID, delivered, delivered.Cap()) }()
	text := c.Content.Text
	if !c.Snapshot {
		delivered.WriteString(text)
		return text
	}
	before := delivered.String()
	if rest, ok := strings.CutPrefix(text, before); ok {
		delivered.WriteString(rest)
		return rest
	}
	if strings.HasPrefix(before, text) {
		return "" // some or all of the text was withdrawn
	}
	delivered.Reset()
	delivered.WriteString(text)
	return "\n\n" + text
}

// toolCall returns the update for a tool call. The first update has all fields that the protocol
// requires.
func (t *updater) toolCall(ev runnerscripts.Event) (acp.SessionUpdate, bool) {
	c, ok := payload[runnerscripts.ToolCall](t, ev)
	if !ok || c.ToolCallID == "" {
		return acp.SessionUpdate{}, false
	}
	t.last = place{}
	u := t.call(c)
	if !isMain(ev) {
		u.Meta = map[string]any{"agentenv": map[string]any{"subagent": ev.ConversationID}}
	}
	if _, delivered := t.tools.Get(c.ToolCallID); delivered {
		return acp.SessionUpdate{ToolCallUpdate: &acp.SessionToolCallUpdate{
			Meta: u.Meta, ToolCallId: u.ToolCallId, Title: u.Title, Kind: u.Kind, Status: u.Status, Content: u.Content,
			Locations: u.Locations, RawInput: u.RawInput, RawOutput: u.RawOutput,
		}}, true
	}
	t.tools.Put(c.ToolCallID, struct{}{}, 0)
	return acp.SessionUpdate{ToolCall: &acp.SessionUpdateToolCall{
		Meta: u.Meta, ToolCallId: u.ToolCallId, Title: visible.Text(cmp.Or(c.Title, c.Name, "tool")),
		Kind: acp.ToolKind(cmp.Or(c.Kind, runnerscripts.ToolOther)), Status: acp.ToolCallStatus(cmp.Or(c.Status, runnerscripts.ToolPending)),
		Content: u.Content, Locations: u.Locations, RawInput: u.RawInput, RawOutput: u.RawOutput,
	}}, true
}

// question returns the tool call of a permission request.
func (t *updater) question(c runnerscripts.ToolCall) acp.ToolCallUpdate {
	if _, delivered := t.tools.Get(c.ToolCallID); c.Title == "" && c.Name != "" && !delivered {
		c.Title = c.Name
	}
	return t.call(c)
}

// call converts a tool call to the protocol's form. It leaves out fields that are not set.
func (t *updater) call(c runnerscripts.ToolCall) acp.ToolCallUpdate {
	u := acp.ToolCallUpdate{
		ToolCallId: acp.ToolCallId(c.ToolCallID), Title: given(visible.Text(c.Title)), Kind: given(acp.ToolKind(c.Kind)),
		Status: given(acp.ToolCallStatus(c.Status)), RawInput: raw(c.RawInput), RawOutput: raw(c.RawOutput),
	}
	for _, l := range c.Locations {
		u.Locations = append(u.Locations, acp.ToolCallLocation{Path: t.paths.editor(l.Path), Line: given(l.Line)})
	}
	for _, part := range c.Content {
		if part.Type == "diff" {
			u.Content = append(u.Content, acp.ToolCallContent{Diff: &acp.ToolCallContentDiff{
				Type: "diff", Path: t.paths.editor(part.Path), OldText: part.OldText, NewText: part.NewText,
			}})
		} else if part.Content != nil {
			if block, ok := contentBlock(*part.Content); ok {
				u.Content = append(u.Content, acp.ToolContent(block))
			}
		}
	}
	return u
}

// given returns a pointer to v; nil if v is the zero value.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// raw returns m; nil if it is empty.
func raw(m json.RawMessage) any {
	if len(m) == 0 {
		return nil
	}
	return m
}

// contentBlock converts content to the protocol's form. It returns false if the protocol has no
// form for it.
func contentBlock(c runnerscripts.Content) (acp.ContentBlock, bool) {
	switch c.Type {
	case "text":
		return acp.TextBlock(c.Text), true
	case "image":
		return acp.ImageBlock(c.Data, c.MimeType), c.Data != ""
	case "audio":
		return acp.AudioBlock(c.Data, c.MimeType), c.Data != ""
	case "resource_link":
		return acp.ResourceLinkBlock(cmp.Or(c.Text, c.URI), c.URI), true
	}
	return acp.ContentBlock{}, false
}

func planEntries(p runnerscripts.Plan) []acp.PlanEntry {
	entries := make([]acp.PlanEntry, len(p.Entries))
	for i, e := range p.Entries {
		entries[i] = acp.PlanEntry{
			Content:  e.Content,
			Priority: acp.PlanEntryPriority(cmp.Or(e.Priority, string(acp.PlanEntryPriorityMedium))),
			Status:   acp.PlanEntryStatus(cmp.Or(e.Status, string(acp.PlanEntryStatusPending))),
		}
	}
	return entries
}
