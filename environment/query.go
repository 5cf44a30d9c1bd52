package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	program "github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// killMargin is how much longer than the grace period of an interrupt a runner may take to kill
// the agent, before the runner itself is killed.
const killMargin = 5 * time.Second

// probeTimeout is how long a sandbox may take to answer that it lives, after something in it has
// failed.
const probeTimeout = 5 * time.Second

// Query is one prompt.
type Query struct {
	// Prompt must not be empty.
	Prompt string
	// ID becomes Event.QueryID of the query's events. Empty means a new ID. If the latest prompt
	// in the sandbox has this ID and its program is gone, the query continues and the agent does
	// not get the prompt again. So a prompt runs once, whenever its program died.
	ID string
	// After is the Index of the query's last event that the caller has. Events up to it are left
	// out, and later events have higher indexes. A new query has zero.
	After int
	// Detach lets the query continue in the sandbox when ctx is done, the loop ends early or the
	// environment is closed. [Environment.Interrupt] stops it. Detach needs a kept sandbox with
	// durable commands.
	Detach bool
}

// ExecuteQuery sends the agent a prompt and returns the events, to the end of the query. The
// first query starts the agent, which stays alive between queries if it can. The sequence can be
// used once.
//
// The events of a query that began always end with query_completed or query_failed. If the query
// did not complete, the sequence then ends with an error: a [*QueryError] if the agent reported
// the failure, or a [*ScriptError] if the runner died or broke the protocol. It wraps
// primitives.ErrUnavailable if the sandbox is gone. If another query runs, the only element is
// [ErrBusy]; if ctx is done beforehand, the only element is its cause.
//
// Config.OnPermission answers permission requests. Without it they are rejected, so that no
// query waits for an answer that never comes.
//
// A slow loop slows down the agent: events are not buffered, so the agent waits when the pipes
// are full, and the end of ctx takes effect after the body of the loop. In a kept sandbox with
// durable commands the agent does not wait: its events wait in a file, and events beyond
// primitives.MaxDurableOutput are lost, with primitives.ErrLimit.
//
// Leaving the loop early interrupts the query and waits for its end, unless q.Detach is set.
// When ctx is done, ExecuteQuery interrupts the query and returns its remaining events, and the
// sequence ends with the cause of ctx. An agent that does not stop within 5 seconds
// (runnerscripts.DefaultInterruptGrace) is killed, and the next query starts it again.
func (e *Environment) ExecuteQuery(ctx context.Context, q Query) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if q.ID == "" {
			q.ID = uuid.NewString()
		}
		r := &queryRun{env: e, query: q, yield: yield, began: now(), index: q.After}
		if err := r.run(ctx); err != nil && !r.left {
			yield(runnerscripts.Event{}, err)
		}
	}
}

// queryRun is one running query.
type queryRun struct {
	env   *Environment
	query Query
	yield func(runnerscripts.Event, error) bool
	began time.Time
	index int // of the last event that was read

	active   *activeQuery
	used     func() Used // ends the measuring
	watching bool        // another program sent the prompt
	shared   bool        // other programs may interrupt it, answer its requests and queue prompts
	seen     bool        // the sandbox has a record of its end

	left    bool                // the caller has left the loop
	usage   runnerscripts.Usage // of models
	started bool                // the runner works on the prompt
	untaken bool                // the runner ended before it started the query
	killed  bool                // a tool may have been killed
	ended   bool                // query_completed or query_failed was reported

	refusals map[string]bool // the refused hosts that were reported

	asks    sync.WaitGroup // pending permission requests
	reports chan func()    // from other goroutines, for the goroutine that reports events
}

func (r *queryRun) run(ctx context.Context) error {
	e := r.env
	if r.query.Prompt == "" {
		return fmt.Errorf("execute query: %w: the prompt is empty", fs.ErrInvalid)
	}
	if r.query.Detach && !e.Durable() {
		return fmt.Errorf("execute query: detach: %w: the sandbox is not kept or has no durable commands, or the script is one of your own", errors.ErrUnsupported)
	}
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if ctx.Err() != nil {
		return context.Cause(ctx) // the agent keeps waiting for a prompt
	}
	r.begin()
	defer e.setQuery(nil)
	if err := e.checkAgent(runnerscripts.ExecuteQuery); err != nil {
		return r.fail(ctx, err) // no agent gets the prompt, and lists show no query that has ended
	}
	e.kept.Note(func(a *kept.Record) { a.Began, a.Ended, a.By, a.Waiting = r.began, time.Time{}, program.Self(), nil })
	ctx, withdraw := context.WithCancelCause(ctx)
	r.used = e.meter.Query(withdraw, func(limit *BudgetError) bool { return r.askForMore(ctx, limit) })
	defer r.used()
	err = r.ask(ctx)
	goesOn := !r.ended && r.detaches(ctx)
	withdraw(nil)
	r.asks.Wait()
	if goesOn {
		r.leaveAgent()
		return err
	}
	defer r.noteActivity()
	if err != nil && !r.ended {
		err = r.fail(ctx, err)
	}
	return err
}

// ask sends the prompt to an agent and follows the query to its end.
func (r *queryRun) ask(ctx context.Context) error {
	if err := r.env.checkNotPaused(ctx); err != nil {
		return err
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for {
		p, fresh, err := r.agent(ctx)
		if err != nil {
			return err
		}
		err = r.follow(ctx, p)
		// An agent of an earlier query that ended before it started this one has not seen the
		// prompt.
		if !fresh && r.untaken && !r.left && ctx.Err() == nil {
			r.untaken = false
			continue
		}
		return err
	}
}

var (
	errNotStarted    = errors.New("the script ended before it took up the prompt")
	errNotCompleted  = errors.New("the script ended without query_completed or query_failed")
	errNotStopped    = errors.New("the runner did not end the query after an interrupt and was killed")
	errResultTooSoon = errors.New("the script reported its result before the query was completed")
)

// follow reports the events of a process until the query is over.
func (r *queryRun) follow(ctx context.Context, p *process) error {
	var result *runnerscripts.Result
	var lastResort <-chan time.Time // for a runner that does not keep the grace period
	done, stop := ctx.Done(), r.active.stop
	_, r.shared = p.proc.(*durableProcess)
	if r.setProcess(p) {
		p.offer(r.active.interruptLine())
	}
	interrupt := func() {
		if r.env.interrupt(r.active) != nil {
			p.offer(r.active.interruptLine()) // if the queue is full, lastResort ends the runner
		}
	}
	for {
		switch {
		case r.left && r.query.Detach:
			return nil
		case r.left:
			interrupt()
		}
		select {
		case report := <-r.reports:
			report()
		case text := <-r.env.gate.Refusals():
			r.refused(text)
		case <-done:
			if r.detaches(ctx) {
				return context.Cause(ctx)
			}
			done = nil
			interrupt()
		case <-stop:
			if stop = nil; !r.watching {
				lastResort = time.After(r.env.grace + r.env.margin)
			}
		case <-lastResort:
			r.env.log.Warn("runner killed: it did not end the query after an interrupt", eventlog.Query, r.query.ID)
			r.env.release(p)
			return &ScriptError{Script: p.script, Err: errors.Join(context.Cause(ctx), errNotStopped)}
		case said, ok := <-p.events:
			ev := said.Event
			switch p.taken = max(p.taken, said.end); {
			case !ok:
				return r.died(ctx, p, result)
			case ev.Type == runnerscripts.TypeResult:
				var err error
				if result, err = decodeResult(ev); err != nil {
					r.drop(p)
					return &ScriptError{Script: p.script, Err: err}
				}
			case r.shared && ev.QueryID != r.query.ID && ev.QueryID != "":
				// The event belongs to a query of another program, before this one or queued.
			default:
				r.index++
				if over, err := r.handleEvent(ctx, ev); over {
					return r.finishQuery(ctx, p, err)
				}
			}
		}
	}
}

// handleEvent reports an event and whether it ends the query.
func (r *queryRun) handleEvent(ctx context.Context, ev runnerscripts.Event) (over bool, err error) {
	ev = r.env.fromScript(ev, r.query.ID, runnerscripts.SourceRunner)
	ev.Index = r.index
	switch ev.Type {
	case runnerscripts.TypeQueryStarted:
		r.started = true
	case runnerscripts.TypePermissionRequest:
		r.admit(ctx, ev, r.env.answer)
		return false, nil
	case runnerscripts.TypePermissionResolved:
		r.resolved(ev)
		return false, nil
	case runnerscripts.TypeToolCallUpdate, runnerscripts.TypeToolCall:
		r.noteTool(ev)
	case runnerscripts.TypeQueryCompleted:
		r.warnOutOfMemory(ctx)
		done, err := r.completed(ctx, ev)
		if err != nil {
			return true, &ScriptError{Script: runnerscripts.ExecuteQuery, Err: err}
		}
		if endedBy(ctx) != nil {
			return true, r.failed(ctx, ev, runnerscripts.QueryFailed{DurationMS: done.DurationMS, Usage: done.Usage})
		}
		if r.measure(&done.Usage) {
			ev = r.said(ev.Type, done)
		}
		r.end(ev)
		return true, nil
	case runnerscripts.TypeQueryFailed:
		failed, malformed := runnerscripts.Payload[runnerscripts.QueryFailed](ev)
		if malformed != nil {
			return true, &ScriptError{Script: runnerscripts.ExecuteQuery, Err: fmt.Errorf("its query_failed is malformed: %w", malformed)}
		}
		return true, r.failed(ctx, ev, failed)
	}
	r.report(ev)
	return false, nil
}

// measure ends the measuring of what the query uses. It fills in what the agent did not report,
// and reports whether it changed u.
func (r *queryRun) measure(u *runnerscripts.Usage) (changed bool) {
	before := *u
	if r.used != nil {
		measured := r.used()
		if u.TotalInput()+u.OutputTokens == 0 {
			cost := u.CostUSD
			*u = measured.Usage
			u.CostUSD = cost
		}
		u.CostUSD = cmp.Or(u.CostUSD, measured.CostUSD)
	}
	r.usage = *u
	return *u != before
}

// end reports the last event of the query.
func (r *queryRun) end(ev runnerscripts.Event) {
	r.settle(true, r.known(ev))
	for len(r.env.gate.Refusals()) > 0 {
		r.refused(<-r.env.gate.Refusals())
	}
	r.ended = true
	r.report(ev)
}

// completed checks a query_completed. A runner that is ended together with its sandbox may still
// report that the query was cancelled, which is an error.
func (r *queryRun) completed(ctx context.Context, ev runnerscripts.Event) (done runnerscripts.QueryCompleted, err error) {
	done, err = runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
	switch {
	case err != nil:
		return done, fmt.Errorf("its query_completed is malformed: %w", err)
	case done.StopReason == runnerscripts.StopCancelled && !r.env.isClosed():
		return done, r.env.probeAlive(ctx)
	}
	return done, nil
}

// noteActivity stores that the query has ended.
func (r *queryRun) noteActivity() {
	if r.env.isClosed() && !r.env.owner.kept {
		return // the sandbox has ended too
	}
	r.env.kept.Note(func(a *kept.Record) {
		a.Ended, a.Waiting, a.Usage, a.Used = now(), nil, a.Usage.Add(r.usage), r.env.Used()
	})
}

// finishQuery returns the error of a query that has ended, and drops a broken agent.
func (r *queryRun) finishQuery(ctx context.Context, p *process, err error) error {
	if !r.seen {
		r.env.noteEnd(context.WithoutCancel(ctx), p, r.query.ID)
	}
	var failed *QueryError
	if err != nil && (!errors.As(err, &failed) || failed.Failure.Code == runnerscripts.FailAgent) {
		r.drop(p) // its agent is of no more use
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}

// drop ends a process, unless another query owns it.
func (r *queryRun) drop(p *process) {
	if !r.watching {
		r.env.release(p)
	}
}

// callInReporter calls report in the goroutine that reports events, unless the query ends before.
func (r *queryRun) callInReporter(ctx context.Context, report func()) (called bool) {
	select {
	case r.reports <- report:
		return true
	case <-ctx.Done():
		return false
	}
}

// report yields an event to the caller, unless the caller has left or has the event already.
func (r *queryRun) report(ev runnerscripts.Event) {
	if r.known(ev) {
		return
	}
	eventlog.Write(r.env.log, ev)
	if !r.left && !r.yield(ev, nil) {
		r.left = true
	}
}

// agent returns the process that has the prompt: the live one, or a fresh one.
func (r *queryRun) agent(ctx context.Context) (p *process, fresh bool, err error) {
	e, q := r.env, r.query
	e.mu.Lock()
	p = e.agent
	e.mu.Unlock()
	if p == nil {
		var has bool
		if p, has, err = r.rejoin(ctx); err != nil || has {
			return p, false, err
		}
	}
	if p != nil {
		if err := r.notePrompt(ctx, p); err != nil {
			return nil, false, err
		}
		err := p.send(ctx, runnerscripts.Control{Type: runnerscripts.ControlPrompt, ID: q.ID, Text: q.Prompt})
		if err == nil {
			return p, false, nil
		}
		e.release(p)
		if !errors.Is(err, errScriptExited) {
			return nil, false, err
		}
		e.log.Warn("agent has ended since its last query and is started again")
	}
	e.gate.Renew()
	session := e.session()
	if p, err = e.start(ctx, runnerscripts.ExecuteQuery, runnerscripts.QueryRequest{
		Session: session, Profile: e.cfg.Profile, Prompt: q.Prompt, PromptID: q.ID, Raw: e.cfg.Raw,
		InterruptGraceMS: max(1, e.grace.Milliseconds()),
	}, func(p *process) error { return r.notePrompt(ctx, p) }); err != nil {
		return nil, false, err
	}
	e.log.Debug("agent started", eventlog.Query, q.ID)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.agent = p
	// Send what was changed during the start. There is room: only the request was sent.
	if e.model != "" && e.model != session.Agent.Model {
		p.offer(runnerscripts.Control{Type: runnerscripts.ControlSetModel, Value: e.model})
	}
	if e.mode != "" && e.mode != session.Agent.PermissionMode {
		p.offer(runnerscripts.Control{Type: runnerscripts.ControlSetMode, Value: e.mode})
	}
	return p, true, nil
}

// begin makes the query the running one.
func (r *queryRun) begin() {
	r.active = &activeQuery{id: r.query.ID, detached: r.query.Detach, stop: make(chan struct{}), requests: make(openRequests)}
	r.reports = make(chan func())
	for len(r.env.gate.Refusals()) > 0 { // from before the query
		<-r.env.gate.Refusals()
	}
	r.env.setQuery(r.active)
}

func (e *Environment) setQuery(q *activeQuery) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.query = q
}

// setProcess records which process has the prompt, and reports whether the query was interrupted
// before.
func (r *queryRun) setProcess(p *process) (interrupted bool) {
	r.env.mu.Lock()
	defer r.env.mu.Unlock()
	r.active.proc = p
	return r.active.interrupted
}
