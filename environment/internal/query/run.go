package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// run is one running query.
type run struct {
	q     *Queries
	query Query
	yield func(runnerscripts.Event, error) bool
	began time.Time
	index int // of the last event that was read

	active   *active
	used     func() gateway.Used // ends the measuring
	watching bool                // another program sent the prompt
	shared   bool                // other programs may interrupt it, answer its requests and queue prompts
	seen     bool                // the sandbox has a record of its end

	output output
	left   bool                // the caller has left the loop
	usage  runnerscripts.Usage // of models
	killed bool                // a tool may have been killed

	refusals map[string]bool // the refused hosts that were reported

	asks    sync.WaitGroup // pending permission requests
	reports chan func()    // from other goroutines, for the goroutine that reports events
}

// Execute sends the agent a prompt and yields the events, to the end of the query, as environment.ExecuteQuery describes.
func (q *Queries) Execute(ctx context.Context, query Query, yield func(runnerscripts.Event, error) bool) {
	if query.ID == "" {
		query.ID = uuid.NewString()
	}
	r := &run{q: q, query: query, yield: yield, began: now(), index: query.After}
	if err := r.run(ctx); err != nil && !r.left {
		yield(runnerscripts.Event{}, err)
	}
}

func (r *run) run(ctx context.Context) error {
	if r.query.Prompt == "" {
		return fmt.Errorf("execute query: %w: the prompt is empty", fs.ErrInvalid)
	}
	if err := r.output.begin(r.query.OutputSchema); err != nil {
		return fmt.Errorf("execute query: output schema: %w", err)
	}
	if r.query.Detach && !r.q.Durable() {
		return fmt.Errorf("execute query: detach: %w: the sandbox is not kept or has no durable commands, or the script is one of your own", errors.ErrUnsupported)
	}
	ctx, leave, err := r.q.Alone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if ctx.Err() != nil {
		return context.Cause(ctx) // the agent keeps waiting for a prompt
	}
	r.begin()
	defer r.q.setQuery(nil)
	if err := r.q.Scripts.Check(runnerscripts.ExecuteQuery); err != nil {
		return r.endWithError(ctx, err) // no agent gets the prompt, and lists show no query that has ended
	}
	if r.q.CheckPrompt != nil {
		if err := r.q.CheckPrompt(r.query.Prompt); err != nil {
			return r.endWithError(ctx, err)
		}
	}
	r.q.Kept.Note(func(k *kept.Record) { k.Began, k.Ended, k.By, k.Waiting = r.began, time.Time{}, owner.Self(), nil })
	ctx, withdraw := context.WithCancelCause(ctx)
	r.admitExecutors(ctx)
	r.used = r.q.Meter.Query(withdraw, func(limit *gateway.BudgetError) bool { return r.askForMore(ctx, limit) })
	defer r.used()
	err = r.ask(ctx)
	goesOn := !r.isOver() && r.detaches(ctx)
	withdraw(nil)
	r.asks.Wait()
	if goesOn {
		r.leaveAgent()
		return err
	}
	defer r.noteEnd()
	if err != nil && !r.isOver() {
		err = r.endWithError(ctx, err)
	}
	return err
}

// detaches reports whether the query continues without this program: it is detached, the caller
// has left it, and the gateway has not ended it.
func (r *run) detaches(ctx context.Context) bool {
	return r.query.Detach && (r.left || ctx.Err() != nil) && endedBy(ctx) == nil
}

// leaveAgent leaves the agent running for the next program or query.
func (r *run) leaveAgent() {
	r.q.Kept.Note(func(k *kept.Record) { k.By, k.Waiting = owner.Identity{}, nil })
	r.q.mu.Lock()
	p := r.q.agent
	r.q.look = true
	r.q.mu.Unlock()
	if p != nil {
		r.q.leave(p)
	}
}

// isOver reports whether the end of the query was reported.
func (r *run) isOver() bool { return r.active.state.phase == ended }

// ask sends the prompt to an agent and reads the events of the query to its end.
func (r *run) ask(ctx context.Context) error {
	if err := r.q.CheckAwake(ctx); err != nil {
		return err
	}
	data, err := r.q.Prepare(ctx, r.query.ID)
	if err != nil {
		return err
	}
	if data.Restored.From != "" {
		r.report(r.q.events.New(runnerscripts.TypeTranscriptRestored, "", data.Restored))
	}
	for {
		p, fresh, err := r.agent(ctx)
		if err != nil {
			return err
		}
		if err = r.read(ctx, p, fresh); !errors.Is(err, errAgain) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// How a script breaks off a query.
var (
	ErrNotStarted    = errors.New("the script ended before it took up the prompt")
	ErrNotCompleted  = errors.New("the script ended without query_completed or query_failed")
	ErrNotStopped    = errors.New("the runner did not end the query after an interrupt and was killed")
	errAgain         = errors.New("the agent had ended before it got the prompt")
	ErrResultTooSoon = errors.New("the script reported its result before the query was completed")
)

// read reports the events of a process until the query is over. fresh means that no second process may get the prompt; see
// state.exit. The error is errAgain if a second process must get it.
func (r *run) read(ctx context.Context, p *script.Process, fresh bool) error {
	var result *runnerscripts.Result
	var lastResort <-chan time.Time // for a runner that does not keep the grace period
	done, stop := ctx.Done(), r.active.stop
	_, _, r.shared = p.Durable()
	// do changes the state, and reports whether to leave the query to the next program.
	do := func(f func(*state) action) (leave bool) {
		action, to := r.q.change(r.active, f)
		if action == interrupt {
			to.Offer(r.active.interruptLine()) // if the queue is full, lastResort ends the runner
		}
		return action == goOn
	}
	abandon := func(s *state) action { return s.abandon(endedBy(ctx) == nil) }
	do(func(s *state) action {
		r.active.proc = p
		return s.accept()
	})
	for {
		if r.left && do(abandon) {
			return nil
		}
		select {
		case report := <-r.reports:
			report()
		case text := <-r.q.Gate.Refusals():
			r.refused(text)
		case <-done:
			done = nil
			if do(abandon) {
				return context.Cause(ctx)
			}
		case <-stop:
			if stop = nil; !r.watching {
				lastResort = time.After(r.q.Grace + r.q.Margin)
			}
		case <-lastResort:
			r.q.events.Log.Warn("runner killed: it did not end the query after an interrupt", eventlog.Query, r.query.ID)
			r.q.release(p)
			return &runnerscripts.ScriptError{Script: p.Script, Err: errors.Join(context.Cause(ctx), ErrNotStopped)}
		case said, ok := <-p.Events():
			ev := said.Event
			switch p.Taken = max(p.Taken, said.End); {
			case !ok:
				return r.processEnded(ctx, p, fresh, result)
			case ev.Type == runnerscripts.TypeResult:
				var err error
				if result, err = script.DecodeResult(ev); err != nil {
					r.drop(p)
					return &runnerscripts.ScriptError{Script: p.Script, Err: err}
				}
			case r.shared && ev.QueryID != r.query.ID && ev.QueryID != "":
				// The event belongs to a query of another program, before this one or queued.
			default:
				if ev.Type != runnerscripts.TypeQueryOutput { // which only the host sees
					r.index++
				}
				if over, err := r.handleEvent(ctx, ev); over {
					return r.finishQuery(ctx, p, err)
				}
			}
		}
	}
}

// handleEvent reports an event and whether it ends the query.
func (r *run) handleEvent(ctx context.Context, ev runnerscripts.Event) (over bool, err error) {
	ev = r.q.events.FromScript(ev, r.query.ID, runnerscripts.SourceRunner)
	ev.Index = r.index
	r.output.add(ev)
	switch ev.Type {
	case runnerscripts.TypeQueryStarted:
		r.event(ev.Type)
		if err := r.followOutput(ev); err != nil {
			return true, err
		}
	case runnerscripts.TypeQueryOutput:
		err := r.judge(ctx, ev)
		return err != nil, err
	case runnerscripts.TypePermissionRequest:
		r.admit(ctx, ev, r.q.answer, false)
		return false, nil
	case runnerscripts.TypePermissionResolved:
		r.resolved(ev)
		return false, nil
	case runnerscripts.TypeToolCallUpdate, runnerscripts.TypeToolCall:
		r.noteTool(ev)
	case runnerscripts.TypeQueryCompleted:
		return true, r.agentCompleted(ctx, ev)
	case runnerscripts.TypeQueryFailed:
		failed, malformed := runnerscripts.Payload[runnerscripts.QueryFailed](ev)
		if malformed != nil {
			return true, &runnerscripts.ScriptError{Script: runnerscripts.ExecuteQuery, Err: fmt.Errorf("its query_failed is malformed: %w", malformed)}
		}
		return true, r.agentFailed(ctx, ev, failed)
	}
	r.report(ev)
	return false, nil
}

// measure ends the measuring of what the query uses. It fills in what the agent did not report,
// and reports whether it changed u.
func (r *run) measure(u *runnerscripts.Usage) (changed bool) {
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
func (r *run) end(ev runnerscripts.Event) {
	r.settle(true, r.known(ev))
	for len(r.q.Gate.Refusals()) > 0 {
		r.refused(<-r.q.Gate.Refusals())
	}
	r.event(ev.Type)
	r.report(ev)
}

// noteEnd stores on this machine that the query has ended.
func (r *run) noteEnd() {
	if r.q.Scripts.IsClosed() && !r.q.Scripts.Kept {
		return // the sandbox has ended too
	}
	r.q.Kept.Note(func(k *kept.Record) {
		if k.Ended.IsZero() { // otherwise another program that followed the query has added it
			k.Usage = k.Usage.Add(r.usage)
		}
		if !r.watching {
			k.Used = r.q.Meter.Used()
		}
		k.Ended, k.Waiting = now(), nil
	})
}

// finishQuery returns the error of a query that has ended, and drops a broken agent.
func (r *run) finishQuery(ctx context.Context, p *script.Process, err error) error {
	if !r.seen {
		r.q.noteSeen(context.WithoutCancel(ctx), p, r.query.ID)
	}
	var failed *runnerscripts.QueryError
	if err != nil && (!errors.As(err, &failed) || failed.Failure.Code == runnerscripts.FailAgent) {
		r.drop(p) // its agent is of no more use
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}

// drop ends a process, unless another query owns it.
func (r *run) drop(p *script.Process) {
	if !r.watching {
		r.q.release(p)
	}
}

// callInReporter calls report in the goroutine that reports events, unless the query ends before.
func (r *run) callInReporter(ctx context.Context, report func()) (called bool) {
	select {
	case r.reports <- report:
		return true
	case <-ctx.Done():
		return false
	}
}

// admitExecutors lets executors ask and report until ctx ends, with the query; see [Queries.Ask].
func (r *run) admitExecutors(ctx context.Context) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	r.active.life = ctx
	r.active.call = func(ctx context.Context, f func(*run)) bool {
		return r.callInReporter(ctx, func() { f(r) })
	}
	close(r.q.admitted)
	r.q.admitted = make(chan struct{})
}

// report yields an event to the caller, unless the caller has left or has the event already.
func (r *run) report(ev runnerscripts.Event) {
	if r.known(ev) {
		return
	}
	eventlog.Write(r.q.events.Log, ev)
	if !r.left && !r.yield(ev, nil) {
		r.left = true
	}
}

// known reports whether the caller already has an event, and what came with it.
func (r *run) known(ev runnerscripts.Event) bool {
	return ev.Index > 0 && ev.Index <= r.query.After
}

// said returns an event that replaces the last one read.
func (r *run) said(typ runnerscripts.EventType, payload any) runnerscripts.Event {
	ev := r.q.events.New(typ, r.query.ID, payload)
	ev.Index = r.index
	return ev
}

// agent returns the process that has the prompt: the live one, or a fresh one.
func (r *run) agent(ctx context.Context) (p *script.Process, fresh bool, err error) {
	q := r.q
	if p = q.Agent(); p == nil {
		var has bool
		if p, has, err = r.rejoin(ctx); err != nil || has {
			return p, false, err
		}
	}
	if p != nil {
		if err := r.notePrompt(ctx, p); err != nil {
			return nil, false, err
		}
		err := p.Send(ctx, runnerscripts.Control{
			Type: runnerscripts.ControlPrompt, ID: r.query.ID, Text: r.query.Prompt, Attachments: r.query.Attachments, OutputSchema: r.query.OutputSchema,
		})
		if err == nil {
			return p, false, nil
		}
		q.release(p)
		if !errors.Is(err, script.ErrExited) {
			return nil, false, err
		}
		q.events.Log.Warn("agent has ended since its last query and is started again")
	}
	q.Gate.Renew()
	request := q.Request()
	if p, err = q.Scripts.Start(ctx, runnerscripts.ExecuteQuery, runnerscripts.QueryRequest{
		Session: request, Profile: q.Profile, Prompt: r.query.Prompt, PromptID: r.query.ID, Attachments: r.query.Attachments, OutputSchema: r.query.OutputSchema,
		Raw: q.Raw, InterruptGraceMS: max(1, q.Grace.Milliseconds()),
	}, func(p *script.Process) error { return r.notePrompt(ctx, p) }); err != nil {
		return nil, false, err
	}
	q.events.Log.Debug("agent started", eventlog.Query, r.query.ID)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.agent = p
	// Send what was changed during the start. There is room: only the request was sent.
	if q.model != "" && q.model != request.Agent.Model {
		p.Offer(runnerscripts.Control{Type: runnerscripts.ControlSetModel, Value: q.model})
	}
	if q.mode != "" && q.mode != request.Agent.PermissionMode {
		p.Offer(runnerscripts.Control{Type: runnerscripts.ControlSetMode, Value: q.mode})
	}
	return p, true, nil
}

// event records an event of the query.
func (r *run) event(typ runnerscripts.EventType) {
	r.q.change(r.active, func(s *state) action { s.event(typ); return nothing })
}

// begin makes the query the running one.
func (r *run) begin() {
	r.active = &active{id: r.query.ID, state: state{detach: r.query.Detach}, stop: make(chan struct{}), requests: make(openRequests)}
	r.reports = make(chan func())
	for len(r.q.Gate.Refusals()) > 0 { // from before the query
		<-r.q.Gate.Refusals()
	}
	r.q.setQuery(r.active)
}

// maxTold limits how many refusals a query reports.
const maxTold = 64

// refused reports that a process in the sandbox wanted a host that is not allowed. It reports
// each message once.
func (r *run) refused(message string) {
	if r.refusals == nil {
		r.refusals = map[string]bool{}
	}
	if r.refusals[message] || len(r.refusals) == maxTold {
		return
	}
	r.refusals[message] = true
	r.warn(message)
}
