package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxOpen is how many permission requests of a query may wait for an answer at once,
// and maxOpenBytes how many bytes of memory they may take together. A single one may
// be of any size.
const (
	maxOpen      = 64
	maxOpenBytes = 64 << 20
)

// DefaultPermissionTimeout is how long a permission request waits for an answer if
// [Config] does not say.
const DefaultPermissionTimeout = permission.DefaultTimeout

// PermissionRequest is what an agent asks permission for.
type PermissionRequest = runnerscripts.PermissionRequest

// PermissionDecision is the answer; use Allow and Reject of the request to make one.
type PermissionDecision = runnerscripts.PermissionDecision

// AllowAll allows each request once. It is for Config.OnPermission, in a sandbox that
// keeps the agent in.
func AllowAll(_ context.Context, req PermissionRequest) PermissionDecision { return req.Allow() }

// RejectAll rejects each request. It is for Config.OnPermission.
func RejectAll(_ context.Context, req PermissionRequest) PermissionDecision {
	return req.Reject("This program rejects what needs permission.")
}

// AnswerLater leaves each request to [Environment.Respond]. It is for
// Config.OnPermission.
func AnswerLater(context.Context, PermissionRequest) PermissionDecision {
	return PermissionDecision{}
}

// request is what the host wants to know of a permission request that waits.
type request struct {
	ID      string                           `json:"id"`
	Options []runnerscripts.PermissionOption `json:"options"`
}

// openRequest is a permission request that waits for an answer.
type openRequest struct {
	request
	size   int                // bytes of memory
	cancel context.CancelFunc // ends the wait; nil if nothing waits
}

// openRequests are those of a query, by ID.
type openRequests map[string]openRequest

var (
	errAsked   = errors.New("it waits for an answer already")
	errTooMany = fmt.Errorf("%w: up to %d requests and %d MiB of them wait for an answer at once", primitives.ErrLimit, maxOpen, maxOpenBytes>>20)
)

// add adds a request if there is room for it.
func (o openRequests) add(r openRequest) error {
	if _, known := o[r.ID]; known {
		return errAsked
	}
	total := r.size
	for _, other := range o {
		total += other.size
	}
	if len(o) > 0 && (len(o) >= maxOpen || total > maxOpenBytes) {
		return errTooMany
	}
	o[r.ID] = r
	return nil
}

// openRequest adds a permission request to those that wait. One that was settled before
// is not added, and not an error.
func (e *Environment) openRequest(req request, payload []byte, cancel context.CancelFunc) (added bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked.settled[req.ID] {
		return false, nil
	}
	if e.asked.open == nil {
		e.asked.open = make(openRequests)
	}
	const value = 96 // bytes that a value in an array takes
	size := len(payload) + value*bytes.Count(payload, []byte(","))
	err = e.asked.open.add(openRequest{request: req, size: size, cancel: cancel})
	return err == nil, err
}

// closeRequest ends the wait for an answer, and reports whether there was one.
func (e *Environment) closeRequest(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, open := e.asked.open[id]
	if r.cancel != nil {
		r.cancel()
	}
	delete(e.asked.open, id)
	return open
}

// Respond answers a permission request of the running query by its ID. It is for
// programs whose Config.OnPermission leaves the answer open, as [AnswerLater] does.
// Without a running query it returns [ErrNoQuery]. A decision that the request does not
// offer, or that makes no sense, is fs.ErrInvalid, and the request waits on, for the
// rest of Config.PermissionTimeout.
func (e *Environment) Respond(ctx context.Context, id string, d PermissionDecision) error {
	if id == "" {
		return fmt.Errorf("respond: %w: the id of the permission request is empty", fs.ErrInvalid)
	}
	e.mu.Lock()
	r, open := e.asked.open[id]
	e.mu.Unlock()
	if open {
		if _, err := permission.Check(PermissionRequest{ID: id, Options: r.Options}, d); err != nil {
			return fmt.Errorf("respond: %w", err)
		}
	}
	e.closeRequest(id)
	return e.answer(ctx, id, d)
}

func (e *Environment) answer(ctx context.Context, id string, d PermissionDecision) error {
	return e.control(ctx, runnerscripts.Control{Type: runnerscripts.ControlPermission, ID: id, Decision: &d})
}

// admit reports a permission request and has it answered. For one that cannot wait for
// an answer it reports a log event instead. One too many is rejected, and admit returns
// when the agent has taken that: an agent that does not listen is not read either.
func (r *queryRun) admit(ctx context.Context, ev runnerscripts.Event) {
	head, err := runnerscripts.Payload[request](ev)
	if err != nil || head.ID == "" {
		r.report(ev) // it waits for nothing
		return
	}
	req := PermissionRequest{ID: head.ID, Options: head.Options}
	policy := permission.Policy{On: r.env.cfg.OnPermission, Timeout: r.env.cfg.PermissionTimeout}
	waiting, cancel := policy.Waiting(ctx)
	added, err := r.env.openRequest(head, ev.Payload, cancel)
	switch {
	case errors.Is(err, errTooMany):
		// That it does not arrive shows in how the query ends.
		_ = r.env.answer(ctx, req.ID, req.Reject("Too many permission requests wait for an answer. Ask again when those are answered."))
		fallthrough
	case err != nil:
		cancel()
		r.warn(fmt.Sprintf("a permission request was left out: %v", err))
	case !added, policy.On == nil && r.watching:
		cancel()
		r.report(ev) // it is for the program that began the query
	case policy.On == nil:
		r.report(ev)
		r.decide(ctx, req, permission.Unset(req))
		r.warn(permission.UnsetWarning)
	default:
		if policy.Timeout >= 0 {
			r.asks.Go(func() {
				if d, ok := policy.Expire(waiting, req); ok {
					r.env.log.Warn("permission request timed out and was rejected", eventlog.Query, r.query.ID, eventlog.Request, req.ID)
					r.decide(ctx, req, d)
				}
			})
		}
		r.report(ev)
		r.asks.Go(func() { r.callBack(ctx, waiting, policy, req, ev) })
	}
}

// callBack lets the program decide about a request.
func (r *queryRun) callBack(ctx, waiting context.Context, policy permission.Policy, req PermissionRequest, ev runnerscripts.Event) {
	whole, err := runnerscripts.Payload[PermissionRequest](ev)
	if err != nil {
		r.decide(ctx, req, req.Reject(fmt.Sprintf("The request is malformed: %v", err)))
		return
	}
	if d, ok := policy.Decide(waiting, whole); ok {
		r.decide(ctx, req, d)
	}
}

// decide answers a request that still waits.
func (r *queryRun) decide(ctx context.Context, req PermissionRequest, d PermissionDecision) {
	if r.env.closeRequest(req.ID) {
		// That it does not arrive shows in how the query ends.
		_ = r.env.answer(ctx, req.ID, d)
	}
}

// warn reports a log event of the host.
func (r *queryRun) warn(message string) {
	r.env.log.Warn(message, "query", r.query.ID)
	r.report(r.env.event(runnerscripts.TypeLog, r.query.ID, runnerscripts.Log{Level: "warn", Message: message}))
}

// resolved notes that the agent does not wait for an answer any more.
func (r *queryRun) resolved(ev runnerscripts.Event) {
	if done, err := runnerscripts.Payload[request](ev); err == nil {
		r.env.closeRequest(done.ID)
	}
}
