package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Choose returns the option of a permission request that a decision selects.
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

// Permissions are the pending permission requests of a conversation, each with the data that
// its driver needs to answer it. A request ends once: by an answer or a withdrawal. Its events
// are emitted in order, before the method returns. The methods may be called from several
// goroutines; a zero value with Out set is ready to use.
type Permissions[Q any] struct {
	Out Sink // must not call the methods: they block until it returns

	telling sync.Mutex // held while an event is emitted, which may block on the reader
	mu      sync.Mutex
	pending map[string]pendingPermission[Q]
}

type pendingPermission[Q any] struct {
	conversation string
	question     Q
}

// Request emits and stores a request, unless live returns false. A request whose live runs after
// the WithdrawAll of its ended query is never stored. A nil live means true.
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

// Answer ends a request with the option that choose returns; the driver then sends it to the
// agent. After an error the request stays pending. A request that is not pending is
// FailInvalidRequest.
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
	p.end(id, w, runnerscripts.PermissionResolved{ID: id, Kind: o.Kind, Reason: runnerscripts.ReasonAnswered})
	return w.question, o, nil
}

// Withdraw ends the matching requests and returns their questions.
func (p *Permissions[Q]) Withdraw(fits func(id string, q Q) bool) []Q {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.mu.Lock()
	all := maps.Clone(p.pending)
	p.mu.Unlock()
	var list []Q
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if fits(id, all[id].question) {
			p.end(id, all[id], runnerscripts.PermissionResolved{ID: id, Reason: runnerscripts.ReasonCancelled})
			list = append(list, all[id].question)
		}
	}
	return list
}

// WithdrawAll ends all requests, for the end of a query.
func (p *Permissions[Q]) WithdrawAll() []Q { return p.Withdraw(func(string, Q) bool { return true }) }

// end ends a request. The caller holds p.telling.
func (p *Permissions[Q]) end(id string, w pendingPermission[Q], resolved runnerscripts.PermissionResolved) {
	p.mu.Lock()
	delete(p.pending, id)
	p.mu.Unlock()
	p.Out.Emit(w.conversation, runnerscripts.TypePermissionResolved, resolved)
}

// Pending returns the questions of the pending requests. It does not block on the reader of
// Out.
func (p *Permissions[Q]) Pending() []Q {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Q
	for _, w := range p.pending {
		list = append(list, w.question)
	}
	return list
}

// NotWaiting returns the error for an answer to a request that is not pending.
func NotWaiting(id string) error {
	return Invalid("answer a permission request that waits: there is none with the id %q (any more)", id)
}
