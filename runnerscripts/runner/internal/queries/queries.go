// Package queries holds the state machine of one conversation: the queue of its prompts, their
// interrupts and the permission requests of the agent. It starts no goroutine and does not block:
// each method changes the state and returns actions, which the caller performs in order.
//
// Two promises hold for every sequence of calls that ends with [Queue.Abandon]: each added prompt
// gets one query_started and one query_completed or query_failed, and each reported permission
// request gets one permission_resolved before that. A prompt that arrives after [StopStart] or
// after its withdrawal is not added and gets no event: its sender gives it to the next agent.
package queries

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxWaiting is how many prompts may wait.
const maxWaiting = 1000

// State is the state of a query.
type State int

// The states. The queue forgets a query that is Completed or Failed.
const (
	Pending     State = iota // added; earlier input is still being handled
	Accepted                 // runs when the earlier queries have ended
	Running                  // the agent has the prompt
	Interrupted              // the agent has the prompt and must stop
	Completed
	Failed
)

// Do says what an [Action] is.
type Do int

// The actions.
const (
	// Report: write the event Type with Payload, of the query Query.
	Report Do = iota
	// Interrupt: interrupt the agent. It does not block.
	Interrupt
	// StartGrace: call [Queue.Expire] with Query when the grace period is over.
	StartGrace
	// StopStart: stop the start of the agent, because no query is left.
	StopStart
	// Reject: tell the agent that Request is rejected, because no answer can arrive.
	Reject
)

// Action is something that the caller must do.
type Action struct {
	Do      Do
	Query   string
	Type    runnerscripts.EventType
	Payload any
	Request string
}

// Prompt is a query as the agent gets it.
type Prompt struct {
	ID, Text     string
	Attachments  []runnerscripts.Attachment
	OutputSchema json.RawMessage
}

type query struct {
	Prompt
	state State
	begun bool // the agent has reported something in its turn, so it can be interrupted
	offer offer
}

// offer is the output at the end of a turn.
type offer struct {
	number int    // of the offers of the query; zero before the first
	waits  bool   // the turn has ended, so no event begins one and no interrupt reaches the agent
	judged bool   // the host has answered
	next   string // the text of the next turn; empty for none
}

// Queue is the state of one conversation. The zero value is ready to use: its agent is
// starting. Its methods are not safe for concurrent use.
type Queue struct {
	waiting []*query // pending and accepted, oldest first
	current *query   // running or interrupted; nil if none is
	started bool     // the agent has been started
	closed  bool     // no more prompts, answers and interrupts will come
	// stopping is true after StopStart and Withdraw. Later prompts are dropped.
	stopping bool
	count    int // of prompts, for those without an ID
	// unknown is the last interrupted ID without a prompt. ended is the ID of the last query
	// that ended.
	unknown, ended string
	// requests are the permission requests without a resolution. The value is true for an
	// answered request.
	requests map[string]bool
}

// Add adds a prompt and returns its ID: p.ID, or a generated one if that is empty. The prompt is
// pending until [Queue.Accept]. An empty text, the ID of an unfinished prompt, and a prompt over
// the limit are FailInvalidRequest. A prompt after StopStart is dropped.
func (q *Queue) Add(p Prompt) (id string, actions []Action, err error) {
	id = p.ID
	switch {
	case p.Text == "":
		return "", nil, invalid(`a prompt line needs "text"`)
	case len(q.waiting) >= maxWaiting:
		return "", nil, invalid("prompt %q was left out: %d prompts are queued; wait for queries to end before you send more", id, maxWaiting)
	case id != "" && q.find(id) != nil:
		return "", nil, invalid("prompt %q was left out: another one of this id has not ended", id)
	}
	q.count++
	if id == "" {
		id = "query-" + strconv.Itoa(q.count)
	}
	if q.stopping {
		return id, nil, nil
	}
	p.ID = id
	next := &query{Prompt: p}
	if id == q.unknown {
		q.unknown = ""
		return id, q.end(next, nil), nil
	}
	q.waiting = append(q.waiting, next)
	return id, nil, nil
}

// Withdraw withdraws a prompt, which may not have arrived yet. It reports whether the conversation
// must end, so that the prompt cannot arrive later. It changes nothing and returns false if a query
// runs, if the prompt's query was the last to end, or if other prompts wait.
func (q *Queue) Withdraw(id string) bool {
	other := func(p *query) bool { return p.ID != id }
	if q.current != nil || id == q.ended || slices.ContainsFunc(q.waiting, other) {
		return false
	}
	q.waiting, q.stopping = nil, true
	return true
}

// Accept lets a prompt run when the earlier queries have ended. It does nothing if the prompt
// was interrupted meanwhile.
func (q *Queue) Accept(id string) {
	if p := q.find(id); p != nil && p.state == Pending {
		p.state = Accepted
	}
}

// Started records that the agent can take prompts.
func (q *Queue) Started() { q.started = true }

// IsStarted reports whether the agent can take prompts.
func (q *Queue) IsStarted() bool { return q.started }

// Next starts the next accepted prompt. ok is false if there is none now. done is true if there
// will be none.
func (q *Queue) Next() (p Prompt, actions []Action, ok, done bool) {
	if q.current != nil || len(q.waiting) == 0 || q.waiting[0].state != Accepted {
		return Prompt{}, nil, false, q.closed && q.current == nil && len(q.waiting) == 0
	}
	q.current, q.waiting = q.waiting[0], q.waiting[1:]
	q.current.state = Running
	return q.current.Prompt, []Action{q.current.report()}, true, false
}

// Running returns the ID of the query that the agent works on; empty if there is none.
func (q *Queue) Running() string {
	if q.current == nil {
		return ""
	}
	return q.current.ID
}

// Interrupt stops a query. An empty ID means the running query or, if none runs, the next one. A
// query that the agent does not have yet completes at once. A running query is interrupted as soon
// as the agent can be, and completes when the agent stops. An interrupt may arrive before its
// prompt. A second interrupt changes nothing.
func (q *Queue) Interrupt(id string) []Action {
	p := q.find(id)
	switch {
	case id == "" && q.current != nil:
		p = q.current
	case id == "" && len(q.waiting) > 0:
		p = q.waiting[0]
	}
	switch {
	case p == nil:
		if id != "" && id != q.ended {
			q.unknown = id
		}
		return nil
	case p.state == Interrupted:
		return nil
	case p == q.current:
		p.state = Interrupted
		actions := []Action{{Do: StartGrace, Query: p.ID}}
		if p.begun {
			actions = append(actions, Action{Do: Interrupt})
		}
		return actions
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(other *query) bool { return other == p })
	actions := q.end(p, nil)
	if !q.started && len(q.waiting) == 0 {
		q.stopping = true
		actions = append(actions, Action{Do: StopStart})
	}
	return actions
}

// Offer offers the output of the running query, whose turn has ended, to the host. The query goes on with
// what [Queue.Verdict] returns.
func (q *Queue) Offer(result json.RawMessage) []Action {
	p := q.current
	p.begun, p.offer = false, offer{number: p.offer.number + 1, waits: true}
	return []Action{{Do: Report, Query: p.ID, Type: runnerscripts.TypeQueryOutput, Payload: runnerscripts.QueryOutput{
		ID: p.offerID(), ResultData: result,
	}}}
}

// Judge handles the host's answer to an offer. It does nothing if the offer is not the last one or has an answer:
// several programs may follow the query, and each answers.
func (q *Queue) Judge(id, next string) {
	if p := q.current; p != nil && p.offer.number > 0 && p.offerID() == id && !p.offer.judged {
		p.offer.judged, p.offer.next = true, next
	}
}

// Verdict returns how the running query goes on after an offer: with another turn that has the text next, or with
// its end if next is empty. cancelled says that it was interrupted. ok is false while no answer has come. Without
// input none will come, so the query ends.
func (q *Queue) Verdict() (next string, cancelled, ok bool) {
	p := q.current
	switch {
	case p.state == Interrupted:
		return "", true, true
	case p.offer.judged:
		p.offer.waits = false
		return p.offer.next, false, true
	}
	return "", false, q.closed
}

func (p *query) offerID() string { return p.ID + "-output-" + strconv.Itoa(p.offer.number) }

// Expire handles the end of a query's grace period. It reports whether the agent must be
// killed, because it has not stopped.
func (q *Queue) Expire(id string) (kill bool) {
	return q.current != nil && q.current.ID == id && q.current.state == Interrupted
}

// Emit handles an event of the agent before it is written. query is the query of the event. ok
// is false if the event must not be written: a request that is already pending, or the end of
// one that is not.
func (q *Queue) Emit(payload any) (query string, actions []Action, ok bool) {
	if p := q.current; p != nil && !p.begun && !p.offer.waits {
		p.begun = true
		if p.state == Interrupted {
			actions = append(actions, Action{Do: Interrupt})
		}
	}
	switch p := payload.(type) {
	case runnerscripts.PermissionRequest:
		if _, known := q.requests[p.ID]; known {
			return q.Running(), actions, false
		}
		if q.requests == nil {
			q.requests = make(map[string]bool)
		}
		q.requests[p.ID] = q.closed
		if q.closed {
			actions = append(actions, Action{Do: Reject, Request: p.ID})
		}
	case runnerscripts.PermissionResolved:
		if _, known := q.requests[p.ID]; !known {
			return q.Running(), actions, false
		}
		delete(q.requests, p.ID)
	}
	return q.Running(), actions, true
}

// Answer handles the answer to a permission request. ok says that the agent must get it: only
// the first answer counts, and no answer to a request of an interrupted query. A request that
// is not pending is FailInvalidRequest.
func (q *Queue) Answer(id string) (ok bool, err error) {
	answered, known := q.requests[id]
	switch {
	case !known:
		return false, invalid("no permission request %q waits for an answer", id)
	case q.current != nil && q.current.state == Interrupted:
		return false, nil
	case answered:
		return false, invalid("permission request %q has been answered already", id)
	}
	q.requests[id] = true
	return true, nil
}

// Close handles the end of the input. Queued prompts still run; current and later permission
// requests are rejected.
func (q *Queue) Close() (actions []Action) {
	q.closed = true
	for _, id := range slices.Sorted(maps.Keys(q.requests)) {
		if !q.requests[id] {
			q.requests[id] = true
			actions = append(actions, Action{Do: Reject, Request: id})
		}
	}
	return actions
}

// Complete ends the running query.
func (q *Queue) Complete(done runnerscripts.QueryCompleted) []Action {
	return q.finish(Completed, runnerscripts.TypeQueryCompleted, done)
}

// Fail ends the running query with a failure.
func (q *Queue) Fail(failed runnerscripts.QueryFailed) []Action {
	return q.finish(Failed, runnerscripts.TypeQueryFailed, failed)
}

func (q *Queue) finish(s State, typ runnerscripts.EventType, payload any) []Action {
	p := q.current
	actions := q.withdraw()
	q.current, q.ended, p.state = nil, p.ID, s
	return append(actions, Action{Do: Report, Query: p.ID, Type: typ, Payload: payload})
}

// Abandon ends the prompts that no agent will get: as cancelled, or as failed if why is not
// nil. No prompt may be added afterwards.
func (q *Queue) Abandon(why *runnerscripts.ScriptFailure) []Action {
	actions := q.withdraw()
	for _, p := range q.waiting {
		actions = append(actions, q.end(p, why)...)
	}
	q.waiting, q.closed = nil, true
	return actions
}

// end ends a query that the agent did not get.
func (q *Queue) end(p *query, why *runnerscripts.ScriptFailure) []Action {
	q.ended, p.state = p.ID, Completed
	last := Action{
		Do: Report, Query: p.ID, Type: runnerscripts.TypeQueryCompleted,
		Payload: runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled},
	}
	if why != nil {
		p.state = Failed
		last.Type, last.Payload = runnerscripts.TypeQueryFailed, runnerscripts.QueryFailed{
			Code: why.Code, Message: "the agent ended before it got the prompt: " + why.Message + "; send the prompt again",
		}
	}
	return []Action{p.report(), last}
}

// withdraw withdraws the permission requests that the agent has not ended itself.
func (q *Queue) withdraw() (actions []Action) {
	for _, id := range slices.Sorted(maps.Keys(q.requests)) {
		actions = append(actions, Action{
			Do: Report, Query: q.Running(), Type: runnerscripts.TypePermissionResolved,
			Payload: runnerscripts.PermissionResolved{ID: id, Reason: runnerscripts.ReasonCancelled},
		})
	}
	clear(q.requests)
	return actions
}

// find returns the unfinished query with this ID; nil if there is none.
func (q *Queue) find(id string) *query {
	if q.current != nil && q.current.ID == id {
		return q.current
	}
	for _, p := range q.waiting {
		if p.ID == id {
			return p
		}
	}
	return nil
}

func (p *query) report() Action {
	started := runnerscripts.QueryStarted{Prompt: p.Text, OutputSchema: p.OutputSchema}
	for _, a := range p.Attachments {
		started.Attachments = append(started.Attachments, a.Info())
	}
	return Action{Do: Report, Query: p.ID, Type: runnerscripts.TypeQueryStarted, Payload: started}
}

func invalid(format string, args ...any) *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{Code: runnerscripts.FailInvalidRequest, Message: fmt.Sprintf(format, args...)}
}
