package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"

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

// request is what the host wants to know of a permission request, and of its end.
type request struct {
	ID string `json:"id"`
}

// openRequests are the permission requests that wait for an answer, by ID, with the
// memory that each takes.
type openRequests map[string]int

var (
	errAsked   = errors.New("it waits for an answer already")
	errTooMany = fmt.Errorf("%w: up to %d requests and %d MiB of them wait for an answer at once", primitives.ErrLimit, maxOpen, maxOpenBytes>>20)
)

// add adds a request if there is room for it.
func (o openRequests) add(id string, size int) error {
	if _, known := o[id]; known {
		return errAsked
	}
	total := size
	for _, s := range o {
		total += s
	}
	if len(o) > 0 && (len(o) >= maxOpen || total > maxOpenBytes) {
		return errTooMany
	}
	o[id] = size
	return nil
}

// openRequest takes a permission request in, unless it was settled before.
func (e *Environment) openRequest(id string, payload []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked.settled[id] {
		return nil
	}
	if e.asked.open == nil {
		e.asked.open = make(openRequests)
	}
	const value = 96 // bytes that a value in an array takes
	return e.asked.open.add(id, len(payload)+value*bytes.Count(payload, []byte(",")))
}

// closeRequest makes room: a request was answered or withdrawn.
func (e *Environment) closeRequest(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.asked.open, id)
}

// admit returns the event of a permission request, or the log event that stands for
// one that cannot wait for an answer. One too many is rejected, and admit returns when
// the agent has taken that: one that does not listen is not read either.
func (r *queryRun) admit(ctx context.Context, ev runnerscripts.Event) runnerscripts.Event {
	req, err := runnerscripts.Payload[request](ev)
	if err != nil || req.ID == "" {
		return ev // it waits for nothing
	}
	err = r.env.openRequest(req.ID, ev.Payload)
	if err == nil {
		return ev
	}
	if errors.Is(err, errTooMany) {
		// That it does not arrive shows in how the query ends.
		_ = r.env.Respond(ctx, req.ID, runnerscripts.PermissionDecision{
			Kind: runnerscripts.RejectOnce, Message: "Too many permission requests wait for an answer. Ask again when those are answered.",
		})
	}
	return r.env.event(runnerscripts.TypeLog, r.query.ID, runnerscripts.Log{
		Level: "warn", Message: fmt.Sprintf("a permission request was left out: %v", err),
	})
}

// resolved notes that the agent does not wait for an answer any more.
func (r *queryRun) resolved(ev runnerscripts.Event) {
	if done, err := runnerscripts.Payload[request](ev); err == nil {
		r.env.closeRequest(done.ID)
	}
}
