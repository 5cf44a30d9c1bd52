package query

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxOpen limits how many permission requests of a query may wait for an answer at once, and
// MaxOpenBytes limits the bytes of memory they take together. A single request may be of any
// size.
const (
	maxOpen      = 64
	MaxOpenBytes = 64 << 20
)

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
	here   bool               // it came through this program's gateway, so no other program sees it
	// key identifies the tool call for answers that hold for the session; empty if there are no rules,
	// or the call does not say what it does.
	key string
	// name and kind are those of the tool, and entry is what the audit log has of the call.
	name, kind string
	entry      audit.Entry
	// answer is this program's answer; nil while the request is pending.
	answer *runnerscripts.PermissionResolved
}

// taker receives the answer to a permission request.
type taker func(ctx context.Context, id string, d runnerscripts.PermissionDecision) error

// openRequests are the unresolved requests of a query, by ID.
type openRequests map[string]*openRequest

var (
	errAsked    = errors.New("it waits for an answer already")
	errUnstored = errors.New("the answer cannot be stored")
	errTooMany  = fmt.Errorf("%w: up to %d requests and %d MiB of them wait for an answer at once", primitives.ErrLimit, maxOpen, MaxOpenBytes>>20)
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
	if len(o) > 0 && (len(o) >= maxOpen || total > MaxOpenBytes) {
		return errTooMany
	}
	o[r.ID] = r
	return nil
}

// answerLocked records the answer to a request, and returns the request, whose taker must get the
// returned decision. done says why the request ends. Only the first answer counts. The caller holds
// Queries.mu.
func (q *Queries) answerLocked(id string, d runnerscripts.PermissionDecision, done runnerscripts.PermissionResolved) (*openRequest, runnerscripts.PermissionDecision, error) {
	if q.query == nil {
		return nil, d, ErrNone
	}
	r := q.query.requests[id]
	if r == nil || r.answer != nil {
		return nil, d, fmt.Errorf("%w: %q", ErrNotPending, id)
	}
	req := runnerscripts.PermissionRequest{ID: id, Options: r.Options}
	kind, err := permission.Check(req, d)
	if err == nil {
		err = errors.Join(q.checkUpdate(r, d), q.checkAlways(r, d))
	}
	if err == nil && d.Scope != "" {
		if serr := q.store(r, kind, d.By); serr != nil {
			err = fmt.Errorf("%w: %w", errUnstored, serr)
		}
	}
	if err != nil {
		return nil, d, err
	}
	r.cancel()
	done.ID, done.Kind, done.By = id, kind, cmp.Or(d.By, done.By)
	if q.Rules != nil {
		d, done.Scope = q.rememberLocked(r.key, req, kind, d, done.Scope)
	}
	r.answer = &done
	r.size = len(id)
	return r, d, nil
}

// Respond answers a permission request of the running query by its ID, as environment.Respond describes.
func (q *Queries) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	err := ctx.Err()
	switch {
	case id == "":
		err = fmt.Errorf("%w: the id of the permission request is empty", fs.ErrInvalid)
	case err == nil:
		// Once the answer counts, the agent must get it, even if ctx is done.
		err = q.respond(context.WithoutCancel(ctx), id, d, answered)
	}
	if err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	return nil
}

func (q *Queries) respond(ctx context.Context, id string, d runnerscripts.PermissionDecision, done runnerscripts.PermissionResolved) error {
	if q.Scripts.IsClosed() {
		return script.ErrClosed
	}
	q.mu.Lock()
	open, d, err := q.answerLocked(id, d, done)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	q.auditAnswer(open, d, *open.answer)
	return open.take(ctx, id, d)
}

func (q *Queries) answer(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	return q.control(ctx, runnerscripts.Control{Type: runnerscripts.ControlPermission, ID: id, Decision: &d})
}

// admit reports a permission request and gets it answered; take receives the answer, and here is that
// of openRequest. If the request cannot wait for an answer, admit reports a log event instead. If too
// many requests are pending, admit rejects the request and returns when the agent has taken the
// rejection: it stops reading an agent that does not read.
func (r *run) admit(ctx context.Context, ev runnerscripts.Event, take taker, here bool) {
	head, err := runnerscripts.Payload[request](ev)
	if err != nil || head.ID == "" {
		r.report(ev) // no answer is expected
		return
	}
	req := runnerscripts.PermissionRequest{ID: head.ID, Options: head.Options}
	policy := r.q.Permissions
	waiting, cancel := policy.Waiting(ctx)
	open := &openRequest{request: head, size: sizeOf(ev.Payload), cancel: cancel, take: take, here: here}
	verdict := r.q.judge(&ev, open)
	added, err := r.addRequest(open)
	if errors.Is(err, errTooMany) {
		r.settle(false, r.known(ev))
		added, err = r.addRequest(open)
	}
	switch {
	case errors.Is(err, errTooMany):
		// If take fails, the end of the query shows it.
		_ = take(ctx, req.ID, req.Reject("Too many permission requests wait for an answer. Ask again when those are answered."))
		fallthrough
	case err != nil:
		cancel()
		instead := r.q.events.New(runnerscripts.TypeLog, r.query.ID, warning(fmt.Sprintf("a permission request was left out: %v", err)))
		instead.Index = ev.Index // it comes once to each client that follows the query
		r.report(instead)
	case added && verdict != nil:
		r.report(ev)
		r.decide(ctx, req, verdict.answer(req), verdict.PermissionResolved)
	case !added, policy.On == nil && r.watching && !open.here:
		cancel()
		r.report(ev) // the program that began the query answers it
	case policy.On == nil:
		r.report(ev)
		r.warn(permission.UnsetWarning) // before the answer: if this program dies in between, the next one does both
		r.decide(ctx, req, permission.Unset(req), answered)
	default:
		if policy.Timeout >= 0 {
			r.asks.Go(func() {
				if d, ok := policy.Expire(waiting, req); ok {
					r.q.events.Log.Warn("permission request timed out and was rejected", eventlog.Query, r.query.ID, eventlog.Request, req.ID)
					r.decide(ctx, req, d, runnerscripts.PermissionResolved{Reason: runnerscripts.ReasonTimeout})
				}
			})
		}
		r.noteWaiting(ev)
		r.report(ev)
		r.asks.Go(func() { r.callBack(ctx, waiting, policy, req, ev) })
	}
}

// addRequest adds a permission request to the unresolved ones. A request that was settled before the
// query was followed is not added; that is no error.
func (r *run) addRequest(req *openRequest) (added bool, err error) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
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

// callBack asks OnPermission to decide about a request.
func (r *run) callBack(ctx, waiting context.Context, policy permission.Policy, req runnerscripts.PermissionRequest, ev runnerscripts.Event) {
	whole, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
	if err != nil {
		r.decide(ctx, req, req.Reject(fmt.Sprintf("The request is malformed: %v", err)), answered)
		return
	}
	d, ok, invalid := policy.Decide(waiting, whole)
	if invalid != nil { // before the answer, so that the query cannot end first
		r.callInReporter(ctx, func() {
			r.warn(fmt.Sprintf("a permission request was rejected, because the decision of OnPermission is invalid: %v", invalid))
		})
	}
	if !ok {
		return
	}
	err = r.q.respond(ctx, req.ID, d, answered)
	if errors.Is(err, fs.ErrInvalid) || errors.Is(err, errUnstored) {
		r.callInReporter(ctx, func() {
			r.warn(fmt.Sprintf("a permission request was rejected, because the decision of OnPermission cannot be used: %v", err))
		})
		r.decide(ctx, req, req.Reject("This program's decision was invalid."), answered)
	}
}

// decide answers a pending request. ctx ends with the query, which also ends the wait for a
// runner that takes no input.
func (r *run) decide(ctx context.Context, req runnerscripts.PermissionRequest, d runnerscripts.PermissionDecision, done runnerscripts.PermissionResolved) {
	// If the answer does not arrive, the end of the query shows it.
	_ = r.q.respond(ctx, req.ID, d, done)
}

// warn reports a log event of the host.
func (r *run) warn(message string) {
	r.q.events.Log.Warn(message, "query", r.query.ID)
	r.report(r.q.events.New(runnerscripts.TypeLog, r.query.ID, warning(message)))
}

// answered is how a request ends that this program's user, or a callback, answers.
var answered = runnerscripts.PermissionResolved{Reason: runnerscripts.ReasonAnswered}

func warning(message string) runnerscripts.Log {
	return runnerscripts.Log{Level: "warn", Message: message}
}

// resolved reports the end of a permission request, once. Only this program allows requests, or
// another program if the sandbox is shared. If the agent says that a request was allowed
// otherwise, resolved reports the request as withdrawn.
func (r *run) resolved(ev runnerscripts.Event) {
	done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
	if err != nil {
		r.report(ev)
		return
	}
	r.q.mu.Lock()
	before, open := r.active.settled[done.ID], r.active.requests[done.ID]
	delete(r.active.requests, done.ID)
	r.q.mu.Unlock()
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
		done.Kind, done.Reason = "", runnerscripts.ReasonCancelled
	case open.answer != nil && allowed:
		done = *open.answer
	case open.answer != nil && done.Kind != "" && done.Kind.Allows() == open.answer.Kind.Allows():
		done = *open.answer
	case open.answer != nil && done.Kind != "":
		done.Reason = open.answer.Reason // the agent may have rejected a decision it cannot use
	}
	ev.Payload = r.q.events.New(ev.Type, "", done).Payload
	r.report(ev)
}

// settle reports the end of permission requests that the agent does not end itself: the answered
// ones and, with all, also the pending ones. known means that the caller has these events
// already, and settle reports none.
func (r *run) settle(all, known bool) {
	var ends []runnerscripts.PermissionResolved
	r.q.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(r.active.requests)) {
		open := r.active.requests[id]
		switch {
		case open.answer != nil:
			ends = append(ends, *open.answer)
		case all:
			open.cancel()
			ends = append(ends, runnerscripts.PermissionResolved{ID: id, Reason: runnerscripts.ReasonCancelled})
		default:
			continue
		}
		delete(r.active.requests, id)
	}
	r.q.mu.Unlock()
	for _, end := range ends {
		r.noteAnswered(end.ID)
	}
	if known {
		return
	}
	for _, end := range ends {
		r.report(r.q.events.New(runnerscripts.TypePermissionResolved, r.query.ID, end))
	}
}
