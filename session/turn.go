package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"reflect"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/lastfailure"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Turn is an accepted prompt and its query.
type Turn struct {
	session *AgentSession
	id      string
	prompt  string
	// attachments have their contents until the prompt is accepted; then the store has them.
	attachments []runnerscripts.Attachment
	schema      json.RawMessage // of the output; empty for none
	seq         uint64          // Seq of its first event
	// reopened says that the prompt was accepted before the session was opened, and begun that
	// the agent also got it before then.
	begun, reopened bool
	ended           bool // no worker finishes it: its result is in the events
	index           int  // Index of its last event; used by the worker only

	failure lastfailure.Keeper

	done   chan struct{} // closed when result and err are set
	result runnerscripts.QueryCompleted
	err    error
}

// Prompt sends a prompt to the agent. It returns when the prompt is accepted: its query_queued
// event is stored, and the query runs when those before it have ended. ctx covers the
// acceptance, not the query; see [AgentSession.Interrupt].
//
// An empty prompt is fs.ErrInvalid. Attachments are images and files that come with the prompt; the
// session stores them. The errors for those that the agent does not accept are those of
// environment.Config.CheckAttachments. See [ErrBusy] for when the session accepts no prompt.
func (s *AgentSession) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (*Turn, error) {
	return s.PromptQuery(ctx, environment.Query{Prompt: text, Attachments: attachments})
}

// PromptQuery is [AgentSession.Prompt] for a query with an OutputSchema; the errors for a bad one are those of
// environment.Config.CheckOutputSchema. The session itself decides about q.ID, q.After and q.Detach: they must be zero.
func (s *AgentSession) PromptQuery(ctx context.Context, q environment.Query) (*Turn, error) {
	if q.ID != "" {
		return nil, fmt.Errorf("prompt: %w: the query has an ID; leave it out, or use PromptOnce", fs.ErrInvalid)
	}
	q.ID = uuid.NewString()
	return s.prompt(ctx, q)
}

// PromptOnce is [AgentSession.PromptQuery] for a caller that cannot know whether an earlier call was
// successful, such as one whose connection broke or whose program died: the prompt becomes the query
// with the ID q.ID, and if the session has that among its last 64 queries, PromptOnce accepts nothing and
// returns the turn of that query, whichever program made the earlier call and whether the query has
// ended or not. It does not run a failed query again.
//
// If the earlier call had another prompt, other attachments or another OutputSchema, the error is
// fs.ErrInvalid, unless the store has dropped the event that names them.
func (s *AgentSession) PromptOnce(ctx context.Context, q environment.Query) (*Turn, error) {
	if q.ID == "" {
		return nil, fmt.Errorf("prompt: %w: the ID is empty", fs.ErrInvalid)
	}
	return s.prompt(ctx, q)
}

// prompt returns the turn of a prompt, which may have been accepted before.
func (s *AgentSession) prompt(ctx context.Context, q environment.Query) (*Turn, error) {
	switch {
	case q.Prompt == "":
		return nil, fmt.Errorf("prompt: %w: the prompt is empty", fs.ErrInvalid)
	case q.After != 0 || q.Detach:
		return nil, fmt.Errorf("prompt: %w: After and Detach are for the session to decide; leave them out", fs.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	attachments, err := s.cfg.Environment.CheckAttachments(ctx, q.Attachments)
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	schema, err := s.cfg.Environment.CheckOutputSchema(q.OutputSchema)
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	t := &Turn{session: s, id: q.ID, prompt: q.Prompt, attachments: attachments, schema: schema, done: make(chan struct{})}
	if t, err = s.accept(ctx, t); err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	return t, nil
}

// accept stores and queues the prompt, and returns its turn; if the session has its query already, it returns
// the turn of that. Prompts are accepted one at a time, so that they run in the order of their events.
func (s *AgentSession) accept(ctx context.Context, t *Turn) (*Turn, error) {
	s.promptMu.Lock()
	defer s.promptMu.Unlock()
	s.mu.Lock()
	err := s.checkLocked()
	seq := s.state.accepted(t.id)
	switch {
	case err != nil || seq != 0:
	case s.cfg.RejectBusy && (s.state.Query != nil || len(s.state.Queued) > 0):
		err = ErrBusy
	case s.state.overall(s.cfg) != nil:
		err = s.state.overall(s.cfg)
	case len(s.queue) >= s.cfg.MaxQueue:
		err = fmt.Errorf("%w: %d prompts are queued already", ErrBusy, len(s.queue))
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if seq != 0 {
		return s.earlier(ctx, t, seq)
	}
	if t.seq, err = s.storePrompt(ctx, t); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.queue = append(s.queue, t)
	s.mu.Unlock()
	s.signal()
	return t, nil
}

// earlier returns the turn of the query that has the ID of t, and whose first event is seq. The caller holds promptMu.
func (s *AgentSession) earlier(ctx context.Context, t *Turn, seq uint64) (*Turn, error) {
	found := &Turn{session: s, id: t.id, seq: seq, ended: true}
	for _, open := range s.Turns() {
		if open.id == t.id {
			found = open
		}
	}
	before, err := s.promptAt(ctx, seq)
	if errors.Is(err, store.ErrDropped) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(before, t.described()) {
		return nil, fmt.Errorf("%w: the session has accepted another prompt as the query %q; choose another ID", fs.ErrInvalid, t.id)
	}
	return found, nil
}

// ID returns the query's id: Event.QueryID of its events.
func (t *Turn) ID() string { return t.id }

// Seq returns the Seq of the query's first event.
func (t *Turn) Seq() uint64 { return t.seq }

// Events returns the events from the acceptance of the prompt to the end of its query: the
// query's own events and events without a query, such as the sandbox's, but no events of other
// queries. The last event is query_completed or query_failed. The sequence yields an error, and
// ends, only if the events cannot be read; the last event and [Turn.Wait] say how the query
// ended. File events have no query and come a moment after the change, so those of a query's
// last changes may come after its end: [AgentSession.Events] has all.
//
// Leaving the loop does not stop the query. The events can be read more than
// once, until the session is closed.
func (t *Turn) Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if err := t.session.check(); err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		t.session.follow(ctx, t.seq, func(ev runnerscripts.Event, err error) bool {
			if err != nil {
				return yield(ev, err)
			}
			if ev.QueryID != "" && ev.QueryID != t.id {
				return true
			}
			return yield(ev, nil) && (ev.QueryID != t.id || !ev.Type.EndsQuery())
		})
	}
}

// Wait waits for the end of the query and returns its result. An interrupted query completes
// with runnerscripts.StopCancelled; a query that did not complete returns a [*QueryError].
//
// If ctx is done first, Wait returns the context's cause, and the query continues. If the agent
// has reported a failure of the model's API and not recovered from it, the error wraps a
// [*runnerscripts.ScriptFailure].
func (t *Turn) Wait(ctx context.Context) (runnerscripts.QueryCompleted, error) {
	if t.ended {
		return t.stored(ctx)
	}
	select {
	case <-t.done:
		return t.result, t.err
	default:
	}
	select {
	case <-t.done:
		return t.result, t.err
	case <-ctx.Done():
		return runnerscripts.QueryCompleted{}, t.failure.Explain(context.Cause(ctx))
	}
}

// stored returns the result of a query that has ended, from its last event.
func (t *Turn) stored(ctx context.Context) (runnerscripts.QueryCompleted, error) {
	for ev, err := range t.Events(ctx) {
		switch {
		case err != nil && ctx.Err() != nil:
			return runnerscripts.QueryCompleted{}, context.Cause(ctx)
		case err != nil:
			return runnerscripts.QueryCompleted{}, fmt.Errorf("read the end of the query: %w", err)
		case ev.QueryID != t.id || !ev.Type.EndsQuery():
			continue
		}
		failed, _ := decode[runnerscripts.QueryFailed](ev) // of a completed query it has nothing
		if failed.Code == runnerscripts.FailLimit {
			err = primitives.ErrLimit
		}
		_, result, err := ending(t, &ev, nil, err)
		return result, err
	}
	return runnerscripts.QueryCompleted{}, ErrClosed
}

// Interrupt stops this query, or withdraws its prompt if it is still queued. If the query has
// ended, it does nothing.
func (t *Turn) Interrupt(ctx context.Context) error {
	return t.session.interrupt(ctx, t)
}

func (t *Turn) finish(result runnerscripts.QueryCompleted, err error) {
	t.result, t.err = result, err
	close(t.done)
}
