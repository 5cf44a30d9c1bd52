package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Choose finds the option of a permission request that a decision means.
func Choose(options []runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (runnerscripts.PermissionOption, error) {
	i := slices.IndexFunc(options, func(o runnerscripts.PermissionOption) bool {
		if d.OptionID != "" {
			return o.OptionID == d.OptionID && (d.Kind == "" || d.Kind == o.Kind)
		}
		return o.Kind == d.Kind
	})
	if i < 0 {
		return runnerscripts.PermissionOption{}, Invalid(
			"choose one of the request's options: %v has no option %q of kind %q", options, d.OptionID, d.Kind)
	}
	o := options[i]
	if len(d.UpdatedInput) > 0 && !o.Kind.Allows() {
		return o, Invalid("leave updated_input out of a rejection: the tool does not run")
	}
	return o, nil
}

// Permissions are the permission requests of a conversation that wait for a decision, each
// with what its driver needs for the answer. A request ends once: it is answered or
// withdrawn. Its events come in their order, and have come when a method returns. The
// methods may be called from several goroutines; the zero value with Out is ready to use.
type Permissions[Q any] struct {
	Out Sink // must not call the methods: they wait until it returns

	telling sync.Mutex // held until an event is emitted, which may wait for the reader
	mu      sync.Mutex
	pending map[string]pendingPermission[Q]
}

type pendingPermission[Q any] struct {
	conversation string
	question     Q
}

// Request emits a request and keeps it, unless live, called first, returns false. No request
// is kept whose live ran after a WithdrawAll that ended the query. Nil means that it lives.
func (p *Permissions[Q]) Request(conversation string, r runnerscripts.PermissionRequest, q Q, live func() bool) bool {
	p.telling.Lock()
	defer p.telling.Unlock()
	if live != nil && !live() {
		return false
	}
	p.mu.Lock()
	if p.pending == nil {
		p.pending = map[string]pendingPermission[Q]{}
	}
	p.pending[r.ID] = pendingPermission[Q]{conversation, q}
	p.mu.Unlock()
	p.Out.Emit(conversation, runnerscripts.TypePermissionRequest, r)
	return true
}

// Answer ends a request by the option that choose returns, which the driver passes on then.
// After an error the request waits on; one that does not wait is FailInvalidRequest.
func (p *Permissions[Q]) Answer(id string, choose func(Q) (runnerscripts.PermissionOption, error)) (Q, runnerscripts.PermissionOption, error) {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.mu.Lock()
	w, ok := p.pending[id]
	p.mu.Unlock()
	if !ok {
		return w.question, runnerscripts.PermissionOption{}, NotWaiting(id)
	}
	o, err := choose(w.question)
	if err != nil {
		return w.question, o, err
	}
	p.end(id, w, runnerscripts.PermissionResolved{ID: id, Kind: o.Kind, Reason: "answered"})
	return w.question, o, nil
}

// Withdraw ends the requests that fit, and returns their questions.
func (p *Permissions[Q]) Withdraw(fits func(id string, q Q) bool) []Q {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.mu.Lock()
	all := maps.Clone(p.pending)
	p.mu.Unlock()
	var list []Q
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if fits(id, all[id].question) {
			p.end(id, all[id], runnerscripts.PermissionResolved{ID: id, Reason: "cancelled"})
			list = append(list, all[id].question)
		}
	}
	return list
}

// WithdrawAll ends all requests, as those of a query that ends.
func (p *Permissions[Q]) WithdrawAll() []Q { return p.Withdraw(func(string, Q) bool { return true }) }

// end ends a request with p.telling held.
func (p *Permissions[Q]) end(id string, w pendingPermission[Q], resolved runnerscripts.PermissionResolved) {
	p.mu.Lock()
	delete(p.pending, id)
	p.mu.Unlock()
	p.Out.Emit(w.conversation, runnerscripts.TypePermissionResolved, resolved)
}

// Pending returns the questions of the requests that wait. It does not wait for the reader
// of Out.
func (p *Permissions[Q]) Pending() []Q {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Q
	for _, w := range p.pending {
		list = append(list, w.question)
	}
	return list
}

// NotWaiting is the error of an answer to a permission request that does not wait
// for one.
func NotWaiting(id string) error {
	return Invalid("answer a permission request that waits: there is none with the id %q (any more)", id)
}
