// Package script runs the runner scripts in a sandbox: it finds or installs the runner, starts a script, sends it its
// request, reads what it prints, and ends it.
//
// Where to look, by file: host starts and ends scripts and knows which run; runner finds the runner; process is one running
// script; durable is a script that outlives this program; events makes the events of the host from what a script prints.
//
// The package of the same name below runnerscripts/runner is the scripted agent.
package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

var (
	// ErrClosed means that the host was closed.
	ErrClosed = errors.New("environment is closed")
	// ErrExited means that the script has exited.
	ErrExited = errors.New("the script has exited")
	// ErrStopped means that the caller of Run has stopped the script.
	ErrStopped = errors.New("stopped by the caller")
	// ErrNoReason means that a script failed and did not say why.
	ErrNoReason = errors.New("the script's result is not ok and names no error")
)

// Config says how the scripts of a sandbox run.
type Config struct {
	Sandbox primitives.EnvironmentPrimitive
	Events  Events
	// Own are commands that replace scripts, by the script's name.
	Own map[string][]string
	// Runner is the path of the runner on this machine; empty means that package bundle finds it.
	Runner string
	// Env are variables for the scripts and the agent alone.
	Env map[string]string
	// Kept means that the sandbox outlives this program.
	Kept bool
	// Check returns why a script cannot run; nil if it can.
	Check func(script string) error
	// Tell reports a slow step.
	Tell func(message string)
	// Probe is how long the sandbox may take to answer whether it lives.
	Probe time.Duration
	// MaxLine limits a line of a script in bytes; zero means the default of runnerscripts.
	MaxLine int
}

// Host runs the scripts of one sandbox. Its methods may be called from several goroutines at once.
type Host struct {
	Config

	runner runner

	mu     sync.Mutex
	closed bool
	calls  map[int]context.CancelCauseFunc // of running calls, to cancel them at Close
	call   int
	procs  map[*Process]struct{}
}

// NewHost returns a host. The caller closes it.
func NewHost(cfg Config) *Host {
	return &Host{
		Config: cfg, runner: runner{turn: make(chan struct{}, 1)},
		calls: make(map[int]context.CancelCauseFunc), procs: make(map[*Process]struct{}),
	}
}

// Enter begins a call. The returned context also ends when the host is closed. The caller calls leave at the end of the
// call.
func (h *Host) Enter(ctx context.Context) (_ context.Context, leave func(), _ error) {
	ctx, cancel := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		cancel(nil)
		return nil, nil, ErrClosed
	}
	h.call++
	id := h.call
	h.calls[id] = cancel
	return ctx, func() {
		h.mu.Lock()
		delete(h.calls, id)
		h.mu.Unlock()
		cancel(nil)
	}, nil
}

// Close cancels the calls that run, and makes later ones return [ErrClosed]. It returns the scripts that run, for the
// caller to end.
func (h *Host) Close() []*Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, cancel := range h.calls {
		cancel(ErrClosed)
	}
	running := make([]*Process, 0, len(h.procs))
	for p := range h.procs {
		running = append(running, p)
	}
	return running
}

// IsClosed reports whether the host was closed.
func (h *Host) IsClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// adopt registers a process, which the caller of Close then ends.
func (h *Host) adopt(p *Process) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.procs[p] = struct{}{}
	return nil
}

// Release ends a process and forgets it.
func (h *Host) Release(p *Process) {
	p.Close()
	h.forget(p)
}

// Leave forgets a process without ending a durable script.
func (h *Host) Leave(p *Process) {
	p.Leave()
	h.forget(p)
}

func (h *Host) forget(p *Process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.procs, p)
}

// Start runs a script and sends it its request. If before is not nil, Start calls it first. The caller releases the
// process. ctx covers the start only.
func (h *Host) Start(ctx context.Context, script string, request any, before func(*Process) error) (*Process, error) {
	if err := h.Check(script); err != nil {
		return nil, err
	}
	args, err := h.command(ctx, script)
	if err != nil {
		return nil, &runnerscripts.ScriptError{Script: script, Err: err}
	}
	line, err := json.Marshal(request)
	if err != nil {
		return nil, &runnerscripts.ScriptError{Script: script, Err: fmt.Errorf("request: %w", err)}
	}
	// ctx bounds the start only; the process ends with its close.
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, forget)
	proc, err := h.launch(life, script, args)
	starting()
	if err != nil {
		forget()
		return nil, h.Diagnose(ctx, &runnerscripts.ScriptError{Script: script, Err: err})
	}
	maxLine := h.MaxLine
	if maxLine == 0 && script == runnerscripts.ReadTranscript {
		maxLine = runnerscripts.MaxTranscript
	}
	p := follow(ctx, script, proc, 0, maxLine, h.Events.Hide, forget)
	err = h.adopt(p)
	if err == nil && before != nil {
		err = before(p)
	}
	if err != nil {
		h.Release(p)
		return nil, err
	}
	_ = p.queue(ctx, append(line, '\n')) // a script that exits at once shows an error at its end
	return p, nil
}

func (h *Host) launch(ctx context.Context, script string, args []string) (primitives.Process, error) {
	if h.Durable(script) {
		p, err := h.startDurable(ctx, args)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	return h.Sandbox.Exec(ctx, primitives.Command{Args: args, Env: h.environ(), Stdin: true})
}

// environ returns the variables of the scripts beside those of the sandbox.
func (h *Host) environ() []string {
	env := []string{"HOME=" + h.Sandbox.Paths().Home}
	for key, value := range h.Env {
		env = append(env, key+"="+value)
	}
	slices.Sort(env[1:])
	return env
}

// Run runs a script from its request to its result. It passes the events of the transcript to
// emit, which may be nil. If emit returns false, Run ends the script and returns [ErrStopped].
func (h *Host) Run(ctx context.Context, script string, request any, emit func(runnerscripts.Event) bool) (runnerscripts.Result, error) {
	ctx, leave, err := h.Enter(ctx)
	if err != nil {
		return runnerscripts.Result{}, err
	}
	defer leave()
	p, err := h.Start(ctx, script, request, nil)
	if err != nil {
		return runnerscripts.Result{}, err
	}
	defer h.Release(p)
	if err := p.queue(ctx, nil); err != nil && !errors.Is(err, ErrExited) {
		return runnerscripts.Result{}, err
	}
	var result *runnerscripts.Result
	for {
		select {
		case <-ctx.Done():
			return runnerscripts.Result{}, &runnerscripts.ScriptError{Script: script, Err: context.Cause(ctx), Stderr: p.stderr.String()}
		case said, ok := <-p.events:
			ev := said.Event
			switch {
			case !ok:
				return h.finish(ctx, p, result)
			case ev.Type == runnerscripts.TypeResult:
				if result, err = DecodeResult(ev); err != nil {
					return runnerscripts.Result{}, &runnerscripts.ScriptError{Script: script, Err: err}
				}
			case emit == nil:
				h.Events.log(script, ev)
			case !emit(h.Events.FromScript(ev, "", runnerscripts.SourceTranscript)):
				return runnerscripts.Result{}, ErrStopped
			}
		}
	}
}

// finish returns the result or the error of a script whose output has ended.
func (h *Host) finish(ctx context.Context, p *Process, result *runnerscripts.Result) (runnerscripts.Result, error) {
	failure := p.Failure(result, nil)
	switch {
	case failure.Failure != nil || failure.Err != nil || !failure.Status.Success():
	case result == nil:
		failure.Err = ErrNoResult
	case !result.OK:
		failure.Err = ErrNoReason
	default:
		return *result, nil
	}
	return runnerscripts.Result{}, h.Diagnose(ctx, failure)
}

// DecodeResult decodes the result of a script.
func DecodeResult(ev runnerscripts.Event) (*runnerscripts.Result, error) {
	r, err := runnerscripts.Payload[runnerscripts.Result](ev)
	if err != nil {
		return nil, fmt.Errorf("its result line is malformed: %w", err)
	}
	return &r, nil
}

// Data decodes the data of a script's result.
func Data[T any](script string, r runnerscripts.Result) (T, error) {
	var data T
	if len(r.Data) == 0 {
		return data, nil
	}
	if err := json.Unmarshal(r.Data, &data); err != nil {
		return data, &runnerscripts.ScriptError{Script: script, Err: fmt.Errorf("the data of its result is malformed: %w", err)}
	}
	return data, nil
}

// Diagnose adds the sandbox's error to that of a script if the sandbox died.
func (h *Host) Diagnose(ctx context.Context, err *runnerscripts.ScriptError) error {
	if err.Failure != nil || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	if h.IsClosed() {
		err.Err = errors.Join(ErrClosed, err.Err)
		return err
	}
	if lost := h.ProbeAlive(ctx); lost != nil {
		err.Err = errors.Join(err.Err, lost)
	}
	return err
}

// ProbeAlive is CheckAlive for a ctx that may be done already: the sandbox gets a timeout of its
// own to answer.
func (h *Host) ProbeAlive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.Probe)
	defer cancel()
	return h.CheckAlive(ctx)
}

// CheckAlive returns why the sandbox accepts no more calls; nil if it does.
func (h *Host) CheckAlive(ctx context.Context) error {
	state, err := h.Sandbox.Poll(ctx)
	switch {
	case errors.Is(err, primitives.ErrTerminated), errors.Is(err, primitives.ErrUnavailable):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
	case state.Status == primitives.StatusTerminated:
		return primitives.ErrTerminated
	case !state.Running():
		return fmt.Errorf("%w: its status is %s", primitives.ErrUnavailable, state.Status)
	}
	return nil
}
