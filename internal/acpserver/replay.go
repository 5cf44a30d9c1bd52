package acpserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// recall reads the log of the session up to a state, so that the updater knows what the client has. With replay it sends it to
// the client: each message, thought and tool call as a whole, in the order of their beginnings, without what a rewind has
// dropped.
func (c *conversation) recall(ctx context.Context, state session.State, replay bool) error {
	from := uint64(1)
	if !replay {
		if state.Query == nil {
			c.updater.used(state)
			return nil
		}
		from = state.Query.Seq // the client may get more of the messages of this query
	}
	past, err := c.past(ctx, from, state.LastSeq)
	if err != nil {
		return err
	}
	for u, ok := range c.updater.past(past) {
		if !ok || !replay {
			continue
		}
		if err := c.server.tell(ctx, c.id, u); err != nil {
			return err
		}
		if said := u.UserMessageChunk; said != nil && said.MessageId != nil {
			if err := c.showImages(ctx, past.Conversation, *said.MessageId); err != nil {
				return err
			}
		}
	}
	c.updater.used(state)
	if !replay {
		return nil
	}
	for _, u := range c.updater.present(state, past.commands) {
		if err := c.server.tell(ctx, c.id, u); err != nil {
			return err
		}
	}
	return nil
}

// showImages sends the client the images of the prompt of a query.
func (c *conversation) showImages(ctx context.Context, conv *session.Conversation, query string) error {
	i := slices.IndexFunc(conv.Queries, func(q *session.Query) bool { return q.ID == query })
	if i < 0 {
		return nil
	}
	for _, a := range conv.Queries[i].Attachments {
		if a.Feature() != runnerscripts.FeatureImages {
			continue
		}
		blob, err := c.server.cfg.Host.Store().Blob(ctx, string(c.id), store.Digest(a.Digest))
		if err != nil {
			return fmt.Errorf("read the attachment %s: %w", a.Name, err)
		}
		data, err := io.ReadAll(blob)
		if err = errors.Join(err, blob.Close()); err != nil {
			return fmt.Errorf("read the attachment %s: %w", a.Name, err)
		}
		u := acp.UpdateUserMessage(acp.ImageBlock(base64.StdEncoding.EncodeToString(data), a.MediaType))
		u.UserMessageChunk.MessageId = &query
		if err := c.server.tell(ctx, c.id, u); err != nil {
			return err
		}
	}
	return nil
}

// past is what was said in a session.
type past struct {
	*session.Conversation
	prompts  []asked
	commands runnerscripts.Event // the last one of its type
}

// asked is a prompt, and the number of blocks before it.
type asked struct {
	query, prompt string
	before        int
}

// past folds the events of a session.
func (c *conversation) past(ctx context.Context, from, last uint64) (past, error) {
	p := past{Conversation: session.NewConversation()}
	var marks []int // len(p.prompts) at each checkpoint
	for ev, err := range c.server.cfg.Host.Store().Events(ctx, string(c.id), from) {
		if err != nil {
			return p, err
		}
		if ev.Seq > last {
			break
		}
		p.Apply(ev)
		switch ev.Type {
		case runnerscripts.TypeQueryStarted:
			if q, err := runnerscripts.Payload[runnerscripts.QueryStarted](ev); err == nil {
				p.prompts = append(p.prompts, asked{ev.QueryID, q.Prompt, len(p.Blocks)})
			}
		case runnerscripts.TypeCheckpoint:
			for len(marks) < len(p.Checkpoints) {
				marks = append(marks, len(p.prompts))
			}
		case runnerscripts.TypeRewound:
			if n := p.Checkpoint; n > 0 && n <= len(marks) {
				p.prompts = p.prompts[:min(marks[n-1], len(p.prompts))]
			}
		case runnerscripts.TypeCommands:
			p.commands = ev
		}
	}
	return p, nil
}

// past yields the updates for what was said. They are those of the events that would have said it at once.
func (t *updater) past(p past) func(yield func(acp.SessionUpdate, bool) bool) {
	return func(yield func(acp.SessionUpdate, bool) bool) {
		prompts := p.prompts
		text := ""
		ask := func(before int) bool {
			for len(prompts) > 0 && prompts[0].before <= before {
				text = prompts[0].prompt
				if !yield(t.said(prompts[0].query, text)) {
					return false
				}
				prompts = prompts[1:]
			}
			return true
		}
		for i, b := range p.Blocks {
			if !ask(i) {
				return
			}
			if b.Kind == session.BlockUser && strings.TrimSpace(b.Text) == strings.TrimSpace(text) {
				continue // the agent repeats the prompt
			}
			for _, ev := range eventsOf(b) {
				if !yield(t.update(ev)) {
					return
				}
			}
		}
		ask(len(p.Blocks))
	}
}

// eventsOf returns the events that say a block at once.
func eventsOf(b *session.Block) []runnerscripts.Event {
	var typ runnerscripts.EventType
	switch b.Kind {
	case session.BlockTool:
		return []runnerscripts.Event{made(runnerscripts.TypeToolCall, b.QueryID, b.Tool)}
	case session.BlockPlan:
		return []runnerscripts.Event{made(runnerscripts.TypePlan, b.QueryID, b.Plan)}
	case session.BlockUser:
		typ = runnerscripts.TypeUserMessage
	case session.BlockAgent:
		typ = runnerscripts.TypeAgentMessage
	case session.BlockThought:
		typ = runnerscripts.TypeAgentThought
	default: // the protocol has no word for it
		return nil
	}
	var events []runnerscripts.Event
	for i, content := range slices.Concat([]runnerscripts.Content{{Type: "text", Text: b.Text}}, b.Content) {
		if i > 0 || b.Text != "" {
			events = append(events, made(typ, b.QueryID, runnerscripts.ContentChunk{BlockID: b.ID, Content: content, Snapshot: i == 0}))
		}
	}
	return events
}

// made returns an event with a payload, which is a struct of package runnerscripts.
func made(typ runnerscripts.EventType, query string, payload any) runnerscripts.Event {
	data, err := json.Marshal(payload)
	if err != nil {
		data = nil // raw JSON of the agent that is none; the event cannot be read then
	}
	return runnerscripts.Event{Type: typ, QueryID: query, Payload: data}
}

// present returns the updates for what holds at the end of a replay.
func (t *updater) present(state session.State, commands runnerscripts.Event) []acp.SessionUpdate {
	var list []acp.SessionUpdate
	if commands.Type != "" {
		if u, ok := t.update(commands); ok {
			list = append(list, u)
		}
	}
	if u, ok := t.usage(); ok {
		list = append(list, u)
	}
	if state.Title != "" {
		title := state.Title
		list = append(list, acp.SessionUpdate{SessionInfoUpdate: &acp.SessionSessionInfoUpdate{Title: &title}})
	}
	return list
}
