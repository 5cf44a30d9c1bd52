// Package query runs the queries of one environment: it gives the agent its prompts, reports the events of a query to its
// end, and gets permission requests answered.
//
// Where to look, by file: queries has what all share, state the state machine of one query, run its life, completed and
// failure how it ends, output and said what it ends with, permission, waiting and budget its questions, follow the query of another program, prompts the list of a kept
// sandbox that says where the events of a query are, logs and memory what operators read.
package query

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/gate"
	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/internal/permission"
	rules "github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

var (
	// ErrBusy means that a query runs.
	ErrBusy = errors.New("a query is running; wait for its end or interrupt it")
	// ErrNone means that no query runs, or that none was begun.
	ErrNone = errors.New("no query is running")
	// ErrNotPending means that a permission request does not wait for an answer.
	ErrNotPending = errors.New("permission request is not waiting for an answer")
)

// KillMargin is how much longer than the grace period of an interrupt a runner may take to kill the agent, before the
// runner itself is killed.
const KillMargin = 5 * time.Second

// Config is what the queries of an environment need of it.
type Config struct {
	Scripts *script.Host
	// Session is the part that all requests share, with the configured model and mode.
	Session runnerscripts.Session
	Profile runnerscripts.Profile
	Raw     bool
	// Permissions answers requests; without On they are rejected.
	Permissions permission.Policy
	// Rules decide about requests before Permissions; nil for none. Names has no rules, and names tools for Audit, which gets
	// the decisions.
	Rules, Names *rules.Policy
	Audit        *audit.Log
	// Answers is where answers of the scope always hold; without a Project none do.
	Answers answers.Place
	Meter   *gateway.Meter
	Gate    *gate.Gate
	Kept    *kept.Log
	// Prepare prepares the session for the query with an ID, and returns how well a conversation was restored.
	Prepare func(ctx context.Context, id string) (runnerscripts.SetupData, error)
	// CheckPrompt returns why no agent may get a prompt, and CheckResult why a result fails its query,
	// each as a *runnerscripts.ScriptFailure. Nil checks nothing.
	CheckPrompt func(prompt string) error
	CheckResult func(result json.RawMessage) error
	// CheckAwake returns an error if the sandbox is paused.
	CheckAwake func(ctx context.Context) error
	// OutOfMemory reports whether memory ran out in the sandbox after a time.
	OutOfMemory func(ctx context.Context, since time.Time) bool
	// Grace is the grace period of an interrupt, and Margin how much longer the runner may take.
	Grace, Margin time.Duration
	// Attached means that an agent of an earlier program may run in the sandbox.
	Attached bool
}

// Query is one prompt, as environment.Query describes it.
type Query struct {
	Prompt       string
	Attachments  []runnerscripts.Attachment
	OutputSchema json.RawMessage
	ID           string
	After        int
	Detach       bool
}

// Queries runs the queries of one environment, one at a time. Its methods may be called from several goroutines at once.
type Queries struct {
	Config
	events script.Events

	busy chan struct{} // holds a token while a query runs

	mu    sync.Mutex
	agent *script.Process // the execute-query that takes the next prompt
	look  bool            // an agent of an earlier program may run in the sandbox
	query *active         // nil if none runs
	// admitted is closed, and replaced, when a query begins to admit executors.
	admitted chan struct{}
	model    string // set by SetModel; empty: the configured one
	mode     string // set by SetMode, likewise
	// answers are those that hold for the session, by the keys of tool calls.
	answers map[string]rules.Effect
}

// active is what other calls know of the running query. Queries.mu guards what can change.
type active struct {
	id       string
	state    state
	settled  map[string]bool // permission requests from before it was followed; see progress
	proc     *script.Process // the process that has the prompt; nil before
	stop     chan struct{}   // closed when it is interrupted
	requests openRequests
	// call calls a function in the goroutine that reports events, with the run. It returns false if
	// the query, or ctx, ends before.
	call func(ctx context.Context, f func(r *run)) bool
	life context.Context //nolint:containedctx // it ends with the query, for requests that come from elsewhere
}

// New returns the queries of an environment. The caller ends them with Close.
func New(cfg Config) *Queries {
	return &Queries{Config: cfg, events: cfg.Scripts.Events, busy: make(chan struct{}, 1), look: cfg.Attached, admitted: make(chan struct{})}
}

// Close leaves or ends the agent. The caller has closed the host of the scripts.
func (q *Queries) Close() {
	q.mu.Lock()
	agent, detached := q.agent, q.query != nil && q.query.state.detach
	q.mu.Unlock()
	switch {
	case agent == nil:
	case agent.Adopted, detached:
		agent.Leave() // the agent ends by itself after its last client
	default:
		agent.Shutdown()
	}
}

// Alone begins a call that must not overlap a query of this environment. It returns [ErrBusy] if a query runs.
func (q *Queries) Alone(ctx context.Context) (_ context.Context, leave func(), _ error) {
	ctx, left, err := q.Scripts.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	select {
	case q.busy <- struct{}{}:
		return ctx, func() { <-q.busy; left() }, nil
	default:
		left()
		return nil, nil, ErrBusy
	}
}

// Request returns the part that all requests share, with the current model and mode.
func (q *Queries) Request() runnerscripts.Session {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.Session
	s.Agent.Model, s.Agent.PermissionMode = cmp.Or(q.model, s.Agent.Model), cmp.Or(q.mode, s.Agent.PermissionMode)
	return s
}

// Durable reports whether a query can continue in the sandbox without this program.
func (q *Queries) Durable() bool { return q.Scripts.Durable(runnerscripts.ExecuteQuery) }

// StopAgent ends the agent with a grace period. The caller prevents concurrent queries.
func (q *Queries) StopAgent(ctx context.Context) error {
	agent := q.Agent()
	if agent == nil {
		return nil
	}
	if err := q.CheckAwake(ctx); err != nil {
		return err
	}
	agent.Shutdown()
	q.release(agent)
	return nil
}

// Agent returns the process that takes the next prompt; nil for none.
func (q *Queries) Agent() *script.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.agent
}

// release ends a process and forgets it.
func (q *Queries) release(p *script.Process) {
	q.Scripts.Release(p)
	q.forget(p)
}

// leave forgets a process, which continues if it is durable.
func (q *Queries) leave(p *script.Process) {
	q.Scripts.Leave(p)
	q.forget(p)
}

func (q *Queries) forget(p *script.Process) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.agent == p {
		q.agent = nil
	}
}

// EndEarlierAgent ends the agent of an earlier program, if one is left in the sandbox.
func (q *Queries) EndEarlierAgent(ctx context.Context) error {
	q.mu.Lock()
	look := q.look
	q.look = false
	q.mu.Unlock()
	if !look || !q.Durable() {
		return nil
	}
	last, err := q.lastPrompt(ctx)
	if errors.Is(err, ErrNone) {
		return nil
	}
	var p *script.Process
	if err == nil {
		p, err = q.rejoinAfter(ctx, last)
	}
	if err != nil || p == nil {
		return err
	}
	p.Shutdown()
	q.release(p)
	return nil
}

// change changes the state of a query, and returns what is to be done and the process that has the prompt.
func (q *Queries) change(a *active, f func(*state) action) (action, *script.Process) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := a.state.interrupted
	do := f(&a.state)
	if a.state.interrupted && !before {
		close(a.stop)
	}
	return do, a.proc
}

// Interrupt asks the running query to stop and does not wait for it.
func (q *Queries) Interrupt(ctx context.Context) error {
	q.mu.Lock()
	a := q.query
	q.mu.Unlock()
	switch {
	case q.Scripts.IsClosed():
		return script.ErrClosed
	case a == nil:
		return nil
	}
	do, p := q.change(a, (*state).interrupt)
	if do != interrupt {
		return nil
	}
	if err := p.Send(ctx, a.interruptLine()); err != nil && !errors.Is(err, script.ErrExited) {
		return err
	}
	return nil
}

func (a *active) interruptLine() runnerscripts.Control {
	return runnerscripts.Control{Type: runnerscripts.ControlInterrupt, ID: a.id}
}

// SetMode changes the permission mode of the agent, and of agents that are started later.
func (q *Queries) SetMode(ctx context.Context, mode string) error {
	if q.Rules != nil {
		return fmt.Errorf("set_mode: %w: permissions decide instead of the agent's mode", errors.ErrUnsupported)
	}
	return q.set(ctx, runnerscripts.ControlSetMode, mode, &q.mode)
}

// SetModel changes the model of the agent, and of agents that are started later.
func (q *Queries) SetModel(ctx context.Context, model string) error {
	return q.set(ctx, runnerscripts.ControlSetModel, model, &q.model)
}

func (q *Queries) set(ctx context.Context, typ runnerscripts.ControlType, value string, stored *string) error {
	if value == "" {
		return fmt.Errorf("%s: %w: the value is empty", typ, fs.ErrInvalid)
	}
	ctx, leave, err := q.Scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	q.mu.Lock()
	*stored = value
	p := q.agent
	q.mu.Unlock()
	if p == nil {
		return nil
	}
	err = p.Send(ctx, runnerscripts.Control{Type: typ, Value: value})
	if errors.Is(err, script.ErrExited) {
		return nil // the next agent starts with the value
	}
	return err
}

// control sends a line to the running query.
func (q *Queries) control(ctx context.Context, c runnerscripts.Control) error {
	ctx, leave, err := q.Scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	q.mu.Lock()
	var p *script.Process
	if q.query != nil {
		p = q.query.proc
	}
	q.mu.Unlock()
	if p == nil {
		return ErrNone
	}
	err = p.Send(ctx, c)
	if errors.Is(err, script.ErrExited) {
		return ErrNone
	}
	return err
}

func (q *Queries) setQuery(a *active) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.query = a
}

func now() time.Time { return time.Now().UTC() }
