package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxOpen limits how many permission requests of a query may wait for an answer at once, and
// maxOpenBytes limits the bytes of memory they take together. A single request may be of any
// size.
const (
	maxOpen      = 64
	maxOpenBytes = 64 << 20
)

// The reasons why a permission request ended, for runnerscripts.PermissionResolved.
const (
	reasonAnswered  = "answered"
	reasonTimeout   = "timeout"
	reasonCancelled = "cancelled"
)

// DefaultPermissionTimeout is how long a permission request waits for an answer if [Config] does
// not say.
const DefaultPermissionTimeout = permission.DefaultTimeout

// PermissionRequest is an agent's request for permission.
type PermissionRequest = runnerscripts.PermissionRequest

// PermissionDecision is the answer; use Allow and Reject of the request to make one.
type PermissionDecision = runnerscripts.PermissionDecision

// AllowAll allows each request once, including those of Budget.Ask. It is for
// Config.OnPermission, in a sandbox that confines the agent.
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

// request is the part of a pending permission request that the host needs.
type request struct {
	ID      string                           `json:"id"`
	Options []runnerscripts.PermissionOption `json:"options"`
}

// openRequest is a permission request that the agent has not resolved.
type openRequest struct {
	request
	size   int                // bytes of memory
	cancel context.CancelFunc // ends the wait for an answer
	take   taker              // receives the answer
	// answer is this program's answer; nil while the request is pending.
	answer *runnerscripts.PermissionResolved
}

// taker receives the answer to a permission request.
type taker func(ctx context.Context, id string, d PermissionDecision) error

// openRequests are the unresolved requests of a query, by ID.
type openRequests map[string]*openRequest

var (
	errAsked   = errors.New("it waits for an answer already")
	errTooMany = fmt.Errorf("%w: up to %d requests and %d MiB of them wait for an answer at once", primitives.ErrLimit, maxOpen, maxOpenBytes>>20)
)

// add adds a request if there is room for it.
func (o openRequests) add(r *openRequest) error {
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

// answerLocked records the answer to a request and returns the taker that must get it. Only the
// first answer counts. The caller holds Environment.mu.
func (q *activeQuery) answerLocked(id string, d PermissionDecision, reason string) (taker, error) {
	r := q.requests[id]
	if r == nil || r.answer != nil {
		return nil, fmt.Errorf("%w: %q", ErrNotPending, id)
	}
	kind, err := permission.Check(PermissionRequest{ID: id, Options: r.Options}, d)
	if err != nil {
		return nil, err
	}
	r.cancel()
	r.answer = &runnerscripts.PermissionResolved{ID: id, Kind: kind, Reason: reason}
	r.size = len(id)
	return r.take, nil
}

// Respond answers a permission request of the running query by its ID. It is for programs whose
// Config.OnPermission leaves the answer open, as [AnswerLater] does. Only the first answer
// counts: for a request that was answered or withdrawn, or never existed, the error is
// [ErrNotPending]. Without a running query it is [ErrNoQuery]. For an invalid decision, or one
// that the request does not offer, it is fs.ErrInvalid, and the request stays pending for the
// rest of Config.PermissionTimeout.
//
// ctx matters until the answer counts. Respond then queues the answer for the runner, even if
// ctx is done meanwhile. If the runner does not read and its queue is full, Respond returns when
// there is room, when the runner exits or when e is closed.
func (e *Environment) Respond(ctx context.Context, id string, d PermissionDecision) error {
	err := ctx.Err()
	switch {
	case id == "":
		err = fmt.Errorf("%w: the id of the permission request is empty", fs.ErrInvalid)
	case err == nil:
		// Once the answer counts, the agent must get it, even if ctx is done.
		err = e.respond(context.WithoutCancel(ctx), id, d, reasonAnswered)
	}
	if err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	return nil
}

func (e *Environment) respond(ctx context.Context, id string, d PermissionDecision, reason string) error {
	e.mu.Lock()
	var take taker
	err := ErrNoQuery
	switch {
	case e.closed:
		err = ErrClosed
	case e.query != nil:
		take, err = e.query.answerLocked(id, d, reason)
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return take(ctx, id, d)
}

func (e *Environment) answer(ctx context.Context, id string, d PermissionDecision) error {
	return e.control(ctx, runnerscripts.Control{Type: runnerscripts.ControlPermission, ID: id, Decision: &d})
}

// admit reports a permission request and gets it answered; take receives the answer. If the
// request cannot wait for an answer, admit reports a log event instead. If too many requests are
// pending, admit rejects the request and returns when the agent has taken the rejection: it
// stops reading an agent that does not read.
func (r *queryRun) admit(ctx context.Context, ev runnerscripts.Event, take taker) {
	head, err := runnerscripts.Payload[request](ev)
	if err != nil || head.ID == "" {
		r.report(ev) // no answer is expected
		return
	}
	req := PermissionRequest{ID: head.ID, Options: head.Options}
	policy := permission.Policy{On: r.env.cfg.OnPermission, Timeout: r.env.cfg.PermissionTimeout}
	waiting, cancel := policy.Waiting(ctx)
	open := &openRequest{request: head, size: sizeOf(ev.Payload), cancel: cancel, take: take}
	added, err := r.open(open)
	if errors.Is(err, errTooMany) {
		r.settle(false, r.known(ev))
		added, err = r.open(open)
	}
	switch {
	case errors.Is(err, errTooMany):
		// If take fails, the end of the query shows it.
		_ = take(ctx, req.ID, req.Reject("Too many permission requests wait for an answer. Ask again when those are answered."))
		fallthrough
	case err != nil:
		cancel()
		instead := r.env.event(runnerscripts.TypeLog, r.query.ID, warning(fmt.Sprintf("a permission request was left out: %v", err)))
		instead.Index = ev.Index // it comes once to each client that follows the query
		r.report(instead)
	case !added, policy.On == nil && r.watching:
		cancel()
		r.report(ev) // the program that began the query answers it
	case policy.On == nil:
		r.report(ev)
		r.warn(permission.UnsetWarning) // before the answer: if this program dies in between, the next one does both
		r.decide(ctx, req, permission.Unset(req), reasonAnswered)
	default:
		if policy.Timeout >= 0 {
			r.asks.Go(func() {
				if d, ok := policy.Expire(waiting, req); ok {
					r.env.log.Warn("permission request timed out and was rejected", eventlog.Query, r.query.ID, eventlog.Request, req.ID)
					r.decide(ctx, req, d, reasonTimeout)
				}
			})
		}
		r.noteWaiting(ev)
		r.report(ev)
		r.asks.Go(func() { r.callBack(ctx, waiting, policy, req, ev) })
	}
}

// open adds a permission request to the unresolved ones. A request that was settled before the
// query was followed is not added; that is no error.
func (r *queryRun) open(req *openRequest) (added bool, err error) {
	r.env.mu.Lock()
	defer r.env.mu.Unlock()
	if r.active.settled[req.ID] {
		return false, nil
	}
	err = r.active.requests.add(req)
	return err == nil, err
}

// sizeOf returns how many bytes of memory a request takes.
func sizeOf(payload []byte) int {
	const value = 96 // overhead of a value in an array
	return len(payload) + value*bytes.Count(payload, []byte(","))
}

// callBack asks Config.OnPermission to decide about a request.
func (r *queryRun) callBack(ctx, waiting context.Context, policy permission.Policy, req PermissionRequest, ev runnerscripts.Event) {
	whole, err := runnerscripts.Payload[PermissionRequest](ev)
	if err != nil {
		r.decide(ctx, req, req.Reject(fmt.Sprintf("The request is malformed: %v", err)), reasonAnswered)
		return
	}
	d, ok, invalid := policy.Decide(waiting, whole)
	if invalid != nil { // before the answer, so that the query cannot end first
		r.callInReporter(ctx, func() {
			r.warn(fmt.Sprintf("a permission request was rejected, because the decision of OnPermission is invalid: %v", invalid))
		})
	}
	if ok {
		r.decide(ctx, req, d, reasonAnswered)
	}
}

// decide answers a pending request. ctx ends with the query, which also ends the wait for a
// runner that takes no input.
func (r *queryRun) decide(ctx context.Context, req PermissionRequest, d PermissionDecision, reason string) {
	// If the answer does not arrive, the end of the query shows it.
	_ = r.env.respond(ctx, req.ID, d, reason)
}

// warn reports a log event of the host.
func (r *queryRun) warn(message string) {
	r.env.log.Warn(message, "query", r.query.ID)
	r.report(r.env.event(runnerscripts.TypeLog, r.query.ID, warning(message)))
}

func warning(message string) runnerscripts.Log {
	return runnerscripts.Log{Level: "warn", Message: message}
}

// resolved reports the end of a permission request, once. Only this program allows requests, or
// another program if the sandbox is shared. If the agent says that a request was allowed
// otherwise, resolved reports the request as withdrawn.
func (r *queryRun) resolved(ev runnerscripts.Event) {
	done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
	if err != nil {
		r.report(ev)
		return
	}
	r.env.mu.Lock()
	before, open := r.active.settled[done.ID], r.active.requests[done.ID]
	delete(r.active.requests, done.ID)
	r.env.mu.Unlock()
	if open == nil {
		if before {
			r.report(ev)
		}
		return
	}
	r.noteAnswered(done.ID)
	open.cancel()
	allowed := done.Kind.Allows() && !r.shared
	switch {
	case open.answer == nil && allowed:
		done.Kind, done.Reason = "", reasonCancelled
	case open.answer != nil && allowed:
		done = *open.answer
	case open.answer != nil && done.Kind != "":
		done.Reason = open.answer.Reason // the agent may have rejected a decision it cannot use
	}
	ev.Payload = r.env.event(ev.Type, "", done).Payload
	r.report(ev)
}

// settle reports the end of permission requests that the agent does not end itself: the answered
// ones and, with all, also the pending ones. known means that the caller has these events
// already, and settle reports none.
func (r *queryRun) settle(all, known bool) {
	var ends []runnerscripts.PermissionResolved
	r.env.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(r.active.requests)) {
		open := r.active.requests[id]
		switch {
		case open.answer != nil:
			ends = append(ends, *open.answer)
		case all:
			open.cancel()
			ends = append(ends, runnerscripts.PermissionResolved{ID: id, Reason: reasonCancelled})
		default:
			continue
		}
		delete(r.active.requests, id)
	}
	r.env.mu.Unlock()
	for _, end := range ends {
		r.noteAnswered(end.ID)
	}
	if known {
		return
	}
	for _, end := range ends {
		r.report(r.env.event(runnerscripts.TypePermissionResolved, r.query.ID, end))
	}
}
