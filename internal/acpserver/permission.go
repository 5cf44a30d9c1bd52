package acpserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// questions are the permission requests that the client has not answered.
type questions struct {
	mu   sync.Mutex
	open map[string]context.CancelFunc // by the id of the request
}

// add registers a question. It returns a context that is cancelled when the question is
// withdrawn.
func (q *questions) add(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == nil {
		q.open = make(map[string]context.CancelFunc)
	}
	q.open[id] = cancel
	return ctx, cancel
}

// resolved withdraws a question that was resolved without the client.
func (q *questions) resolved(ev runnerscripts.Event) {
	r, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
	if err != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.open[r.ID]; cancel != nil {
		delete(q.open, r.ID)
		cancel()
	}
}

// withdraw withdraws all open questions.
func (q *questions) withdraw() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, cancel := range q.open {
		cancel()
	}
	clear(q.open)
}

// ask asks the client for permission in a goroutine, so that the agent's other events are sent meanwhile. It waits until ready
// is closed; nil means that it need not. If the connection ends, the request stays open for other clients. A request that is
// decided is not asked: the client would show a question whose answer has no effect.
func (c *conversation) ask(ctx context.Context, req runnerscripts.PermissionRequest, ready <-chan struct{}) {
	if req.Decided {
		return
	}
	s := c.server
	ctx, cancel := c.asking.add(ctx, req.ID)
	put := c.question(req)
	begun := s.begin(func() {
		defer cancel()
		if ready != nil {
			select {
			case <-ready:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
		answer := put(ctx)
		answer.By = s.cfg.User
		agent := s.cfg.Host.Opened(string(c.id))
		if ctx.Err() != nil || agent == nil {
			return // withdrawn, answered otherwise, or asked again when the session is opened
		}
		// Respond resolves the request, which cancels ctx.
		err := agent.Respond(context.WithoutCancel(ctx), req.ID, answer)
		if err != nil && !errors.Is(err, session.ErrNotPending) && !errors.Is(err, session.ErrClosed) {
			s.log.Warn("the answer had no effect", "session", c.id, "error", err)
		}
	}, func() {})
	if !begun {
		cancel()
	}
}

// question returns how to put a request to the user of the client. A form is shown as one if the client can.
func (c *conversation) question(req runnerscripts.PermissionRequest) func(context.Context) runnerscripts.PermissionDecision {
	if f, ok := form.Of(req); ok && c.server.showsForms() {
		return c.elicit(req, f)
	}
	ask := acp.RequestPermissionRequest{SessionId: c.id, ToolCall: c.updater.question(req.ToolCall), Options: options(req.Options)}
	return func(ctx context.Context) runnerscripts.PermissionDecision {
		res, err := acp.SendRequest[acp.RequestPermissionResponse](c.server.conn, ctx, acp.ClientMethodSessionRequestPermission, ask)
		return decision(req, res.Outcome, err)
	}
}

// options returns the options that the editor can offer. It drops those of an unknown
// kind, whose effect the editor cannot explain.
func options(all []runnerscripts.PermissionOption) []acp.PermissionOption {
	var list []acp.PermissionOption
	for _, o := range all {
		if o.Kind.Effect() != "" {
			list = append(list, acp.PermissionOption{
				OptionId: acp.PermissionOptionId(o.OptionID), Name: optionName(o), Kind: acp.PermissionOptionKind(o.Kind),
			})
		}
	}
	return list
}

// optionName returns a name that starts with the effect of an option, whatever the agent calls
// it.
func optionName(o runnerscripts.PermissionOption) string {
	effect := o.Kind.Effect()
	effect = strings.ToUpper(effect[:1]) + effect[1:]
	name := visible.Line(o.Name)
	if name == "" || strings.HasPrefix(effect, name) {
		return effect
	}
	return fmt.Sprintf("%s (%q)", effect, name)
}

// decision returns the editor's decision. It rejects the request if the editor could not ask, or
// if the answer could mean several options.
func decision(req runnerscripts.PermissionRequest, o acp.RequestPermissionOutcome, err error) runnerscripts.PermissionDecision {
	switch {
	case err != nil:
		return req.Reject(fmt.Sprintf("The editor could not ask the user: %v", err))
	case o.Selected == nil:
		return req.Reject("The user has dismissed the question.")
	}
	id := string(o.Selected.OptionId)
	var chosen []runnerscripts.PermissionOption
	for _, p := range req.Options {
		if p.OptionID == id {
			chosen = append(chosen, p)
		}
	}
	switch {
	case len(chosen) > 1:
		return req.Reject(fmt.Sprintf("The agent offered several options %q: what the user has chosen is not known.", id))
	case len(chosen) == 0 || chosen[0].Kind.Effect() == "":
		return req.Reject(fmt.Sprintf("The editor answered with an option that was not offered: %q", id))
	}
	return runnerscripts.PermissionDecision{OptionID: id, Kind: chosen[0].Kind}
}
