package remote

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"net/url"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// Turn is an accepted prompt and its query, as session.Turn.
type Turn struct {
	session *Session
	query   sessionapi.Accepted
}

// Prompt sends a prompt to the agent. It returns when the prompt is accepted; see session.AgentSession.Prompt.
func (s *Session) Prompt(ctx context.Context, text string, attachments ...runnerscripts.Attachment) (*Turn, error) {
	return s.PromptQuery(ctx, environment.Query{Prompt: text, Attachments: attachments})
}

// PromptQuery is [Session.Prompt] for a query with an OutputSchema; see session.AgentSession.PromptQuery.
func (s *Session) PromptQuery(ctx context.Context, q environment.Query) (*Turn, error) {
	if q.ID != "" || q.After != 0 || q.Detach {
		return nil, fmt.Errorf("prompt: %w: ID, After and Detach are for the session to decide; leave them out", fs.ErrInvalid)
	}
	return s.prompt(ctx, rand.Text(), q)
}

// PromptOnce is [Session.PromptQuery] for a caller that cannot know whether an earlier call was successful; see
// session.AgentSession.PromptOnce. q.ID is the Idempotency-Key of the request: the ID of the query is another one, which the server
// derives from it for each user. An ID of more than 256 bytes is fs.ErrInvalid.
func (s *Session) PromptOnce(ctx context.Context, q environment.Query) (*Turn, error) {
	if q.ID == "" || q.After != 0 || q.Detach {
		return nil, fmt.Errorf("prompt: %w: the ID is empty, or After or Detach is set; set the ID alone", fs.ErrInvalid)
	}
	return s.prompt(ctx, url.PathEscape(q.ID), q) // a header does not take every character
}

// prompt sends a prompt under a key.
func (s *Session) prompt(ctx context.Context, key string, q environment.Query) (*Turn, error) {
	t := &Turn{session: s}
	body := sessionapi.Prompt{Text: q.Prompt, Attachments: q.Attachments, OutputSchema: q.OutputSchema}
	if err := s.client.changeUnder(ctx, key, http.MethodPost, s.path("prompts"), body, &t.query); err != nil {
		return nil, err
	}
	return t, nil
}

// Turns returns the running and queued queries, in order.
func (s *Session) Turns(ctx context.Context) ([]*Turn, error) {
	state, err := s.State(ctx)
	if err != nil {
		return nil, err
	}
	var turns []*Turn
	if q := state.Query; q != nil {
		turns = append(turns, &Turn{s, sessionapi.Accepted{ID: q.ID, Seq: q.Seq}})
	}
	for _, q := range state.Queued {
		turns = append(turns, &Turn{s, sessionapi.Accepted{ID: q.ID, Seq: q.Seq}})
	}
	return turns, nil
}

// ID returns the query's ID.
func (t *Turn) ID() string { return t.query.ID }

// Events returns the events from the acceptance of the prompt to the end of its query; see session.Turn.Events.
func (t *Turn) Events(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return sessionapi.EventsOf(t.query.ID, t.session.Events(ctx, t.query.Seq))
}

// ends reports whether an event is the last one of the query.
func (t *Turn) ends(ev runnerscripts.Event) bool {
	return ev.QueryID == t.query.ID && ev.Type.EndsQuery()
}

// Wait waits for the end of the query and returns its result. A query that did not complete is a [*session.QueryError], which
// wraps at most primitives.ErrLimit: its cause stays on the server. If
// ctx is done first, Wait returns the context's cause, and the query continues. If the session is closed before the query has
// ended, the error is session.ErrClosed.
func (t *Turn) Wait(ctx context.Context) (runnerscripts.QueryCompleted, error) {
	for ev, err := range t.Events(ctx) {
		switch {
		case err != nil && ctx.Err() != nil:
			return runnerscripts.QueryCompleted{}, context.Cause(ctx)
		case err != nil:
			return runnerscripts.QueryCompleted{}, err
		case !t.ends(ev):
		case ev.Type == runnerscripts.TypeQueryFailed:
			failed, err := runnerscripts.Payload[runnerscripts.QueryFailed](ev)
			if failed.Code == runnerscripts.FailLimit {
				err = primitives.ErrLimit
			}
			return runnerscripts.QueryCompleted{}, &session.QueryError{QueryID: t.query.ID, Failure: failed, Err: err}
		default:
			return runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
		}
	}
	return runnerscripts.QueryCompleted{}, session.ErrClosed
}

// Interrupt stops this query, or withdraws its prompt if it is still queued.
func (t *Turn) Interrupt(ctx context.Context) error {
	return t.session.client.change(ctx, http.MethodPost, t.session.path("prompts", t.query.ID, "interrupt"), nil, nil)
}
