package acp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// questions are the permission requests that the editor has not answered.
type questions struct {
	waiting sync.WaitGroup

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

// resolved withdraws a question that was resolved without the editor.
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

// withdraw withdraws all open questions and waits for the goroutines that ask them.
func (q *questions) withdraw() {
	q.mu.Lock()
	for _, cancel := range q.open {
		cancel()
	}
	clear(q.open)
	q.mu.Unlock()
	q.waiting.Wait()
}

// ask asks the editor for permission in a goroutine, so that the agent's other events are sent
// meanwhile.
func (c *conversation) ask(ctx context.Context, ev runnerscripts.Event) {
	s := c.server
	req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
	if err != nil || req.ID == "" {
		s.log.Warn("a request for permission cannot be read", "session", c.id, "error", err)
		return
	}
	ctx, cancel := c.asking.add(ctx, req.ID)
	question := acp.RequestPermissionRequest{SessionId: c.id, ToolCall: c.updater.question(req.ToolCall), Options: options(req.Options)}
	c.asking.waiting.Go(func() {
		defer cancel()
		res, err := acp.SendRequest[acp.RequestPermissionResponse](s.conn, ctx, acp.ClientMethodSessionRequestPermission, question)
		if ctx.Err() != nil {
			return // withdrawn, or answered otherwise
		}
		// Respond resolves the request, which cancels ctx.
		err = c.agent.Respond(context.WithoutCancel(ctx), req.ID, decision(req, res.Outcome, err))
		if err != nil && !errors.Is(err, session.ErrNotPending) && !errors.Is(err, session.ErrClosed) {
			s.log.Warn("the answer had no effect", "session", c.id, "error", err)
		}
	})
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
