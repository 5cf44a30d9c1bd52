package environment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"reflect"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Setup is what a session starts with, beside the workspace. The zero value is a new
// conversation.
type Setup struct {
	// Files are files that the runner writes into the workspace; they count as changes.
	Files []runnerscripts.WorkspaceFile
	// Transcript is restored, so that the agent remembers an earlier conversation. It may be
	// that of another agent, which Transcript.Agent names; SetupData.Restored says how well it
	// was restored. If it is nil in a sandbox of [Attach] in which an agent other than
	// Config.Agent has worked, the conversation of that agent is restored.
	Transcript *runnerscripts.Transcript
}

// PrepareSession writes what the agent needs into the sandbox and restores the transcript. It
// may be called again between queries; the next query then restarts the agent.
// [Environment.ExecuteQuery] prepares an unprepared session with a zero Setup. While a query
// runs PrepareSession returns [ErrBusy].
func (e *Environment) PrepareSession(ctx context.Context, s Setup) (runnerscripts.SetupData, error) {
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	defer leave()
	if err := e.stopAgent(ctx); err != nil {
		return runnerscripts.SetupData{}, fmt.Errorf("prepare the session: %w", err)
	}
	return e.setupSession(ctx, s)
}

// StopAgent ends the agent with a grace period, in which the agent writes the rest of its
// history: [Environment.ReadTranscript] then returns all of it. The next query restarts the
// agent, which still remembers. Without a running agent StopAgent does nothing; while a query
// runs it returns [ErrBusy].
func (e *Environment) StopAgent(ctx context.Context) error {
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := e.stopAgent(ctx); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	return nil
}

// stopAgent is StopAgent for a caller that prevents concurrent queries.
func (e *Environment) stopAgent(ctx context.Context) error {
	e.mu.Lock()
	agent := e.agent
	e.mu.Unlock()
	if agent == nil {
		return nil
	}
	if err := e.checkNotPaused(ctx); err != nil {
		return err
	}
	agent.shutdown()
	e.release(agent)
	return nil
}

func (e *Environment) setupSession(ctx context.Context, s Setup) (runnerscripts.SetupData, error) {
	select {
	case e.setup <- struct{}{}:
		defer func() { <-e.setup }()
	case <-ctx.Done():
		return runnerscripts.SetupData{}, context.Cause(ctx)
	}
	e.prepared = false
	if s.Transcript == nil {
		var err error
		if s.Transcript, err = e.predecessor(ctx); err != nil {
			return runnerscripts.SetupData{}, err
		}
	}
	result, err := e.run(ctx, runnerscripts.SetupSession, runnerscripts.SetupRequest{
		Session: e.session(), Profile: e.cfg.Profile, Files: s.Files, Transcript: s.Transcript,
	}, nil)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	data, err := resultData[runnerscripts.SetupData](runnerscripts.SetupSession, result)
	if e.prepared = err == nil; e.prepared {
		e.rememberAgent()
	}
	return data, err
}

// predecessor returns the conversation of the agent that worked in the sandbox before this one,
// and ends that agent; nil for none. The caller holds setup.
func (e *Environment) predecessor(ctx context.Context) (*runnerscripts.Transcript, error) {
	before := e.owner.before
	if before == nil {
		return nil, nil
	}
	working, err := e.working(ctx)
	if err != nil {
		return nil, err
	}
	if working {
		return nil, fmt.Errorf("%w: one of the agent %q; wait for its end with FollowQuery", ErrBusy, before.Name)
	}
	if err := e.endLeft(ctx); err != nil {
		return nil, err
	}
	session := e.session()
	session.Agent = *before
	result, err := e.run(ctx, runnerscripts.ReadTranscript, runnerscripts.TranscriptRequest{Session: session}, nil)
	if err != nil {
		return nil, fmt.Errorf("read the conversation of the agent %q: %w", before.Name, err)
	}
	t, err := resultData[runnerscripts.Transcript](runnerscripts.ReadTranscript, result)
	if err != nil || t.Main == "" {
		return nil, err
	}
	t.Agent = cmp.Or(t.Agent, before.Name) // a script of the user's own may not set it
	return &t, nil
}

// endLeft ends the agent of an earlier program, if one is left in the sandbox.
func (e *Environment) endLeft(ctx context.Context) error {
	e.mu.Lock()
	look := e.left
	e.left = false
	e.mu.Unlock()
	if !look || !e.Durable() {
		return nil
	}
	last, err := e.lastPrompt(ctx)
	if errors.Is(err, ErrNoQuery) {
		return nil
	}
	var p *process
	if err == nil {
		p, err = e.rejoinAfter(ctx, last)
	}
	if err != nil || p == nil {
		return err
	}
	p.shutdown()
	e.release(p)
	return nil
}

// prepareOnce prepares the session unless that is done.
func (e *Environment) prepareOnce(ctx context.Context) (runnerscripts.SetupData, error) {
	prepared, first, err := e.isPrepared(ctx)
	if prepared || err != nil {
		return runnerscripts.SetupData{}, err
	}
	return e.setupSession(ctx, first)
}

// prepare prepares the session, unless the agent before the session's agent continues the query.
func (r *queryRun) prepare(ctx context.Context) error {
	e := r.env
	if e.owner.before != nil {
		last, err := e.lastPrompt(ctx)
		if err == nil && last.QueryID == r.query.ID && !last.Seen {
			return nil
		}
		if err != nil && !errors.Is(err, ErrNoQuery) {
			return err
		}
	}
	data, err := e.prepareOnce(ctx)
	if err == nil && data.Restored.From != "" {
		r.report(e.event(runnerscripts.TypeTranscriptRestored, "", data.Restored))
	}
	return err
}

// restoreMemory restores the transcript of a copy's agent before its first prompt.
func (e *Environment) restoreMemory(ctx context.Context) error {
	if e.first.Transcript == nil {
		return nil
	}
	_, err := e.prepareOnce(ctx)
	return err
}

// isPrepared reports whether the session is prepared, and returns the Setup for it if not. It
// waits for a call that is preparing the session.
func (e *Environment) isPrepared(ctx context.Context) (bool, Setup, error) {
	select {
	case e.setup <- struct{}{}:
		defer func() { <-e.setup }()
		return e.prepared, e.first, nil
	case <-ctx.Done():
		return false, Setup{}, context.Cause(ctx)
	}
}

// ReadTranscript returns the conversation as the agent itself stores it; empty if there is none
// yet.
func (e *Environment) ReadTranscript(ctx context.Context) (runnerscripts.Transcript, error) {
	if err := e.restoreMemory(ctx); err != nil {
		return runnerscripts.Transcript{}, err
	}
	result, err := e.run(ctx, runnerscripts.ReadTranscript, runnerscripts.TranscriptRequest{Session: e.session()}, nil)
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	return resultData[runnerscripts.Transcript](runnerscripts.ReadTranscript, result)
}

// ReadConversation returns the conversation as events, read from the agent's own history. Each
// event has the time at which it happened. An error ends the sequence, which can be used once.
func (e *Environment) ReadConversation(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if err := e.restoreMemory(ctx); err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		request := runnerscripts.TranscriptRequest{Session: e.session(), Events: true}
		_, err := e.run(ctx, runnerscripts.ReadTranscript, request, func(ev runnerscripts.Event) bool {
			return yield(ev, nil)
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(runnerscripts.Event{}, err)
		}
	}
}

// resultData decodes the data of a script's result.
func resultData[T any](script string, r runnerscripts.Result) (T, error) {
	var data T
	if len(r.Data) == 0 {
		return data, nil
	}
	if err := json.Unmarshal(r.Data, &data); err != nil {
		return data, &ScriptError{Script: script, Err: fmt.Errorf("the data of its result is malformed: %w", err)}
	}
	return data, nil
}

// Interrupt asks the running query to stop and does not wait for it: the query completes with
// runnerscripts.StopCancelled. A query that is still being prepared stops once it has begun. An
// agent that does not stop within 5 seconds (runnerscripts.DefaultInterruptGrace) is killed, and
// the query fails. A second interrupt changes nothing. Without a running query Interrupt does
// nothing.
func (e *Environment) Interrupt(ctx context.Context) error {
	e.mu.Lock()
	closed, q := e.closed, e.query
	e.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case q == nil:
		return nil
	}
	p := e.interrupt(q)
	if p == nil {
		return nil
	}
	if err := p.send(ctx, q.interruptLine()); err != nil && !errors.Is(err, errScriptExited) {
		return err
	}
	return nil
}

// interrupt marks a query as interrupted and returns the process that must get the interrupt:
// nil if the query was interrupted before, or if no process has the prompt.
func (e *Environment) interrupt(q *activeQuery) *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.interrupted {
		return nil
	}
	q.interrupted = true
	close(q.stop)
	return q.proc
}

func (q *activeQuery) interruptLine() runnerscripts.Control {
	return runnerscripts.Control{Type: runnerscripts.ControlInterrupt, ID: q.id}
}

// SetMode changes the permission mode of the agent, and of agents that this environment starts
// later.
func (e *Environment) SetMode(ctx context.Context, mode string) error {
	return e.set(ctx, runnerscripts.ControlSetMode, mode, &e.mode)
}

// SetModel changes the model of the agent, and of agents that this environment starts later.
func (e *Environment) SetModel(ctx context.Context, model string) error {
	return e.set(ctx, runnerscripts.ControlSetModel, model, &e.model)
}

func (e *Environment) set(ctx context.Context, typ runnerscripts.ControlType, value string, kept *string) error {
	if value == "" {
		return fmt.Errorf("%s: %w: the value is empty", typ, fs.ErrInvalid)
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.mu.Lock()
	*kept = value
	p := e.agent
	e.mu.Unlock()
	if p == nil {
		return nil
	}
	err = p.send(ctx, runnerscripts.Control{Type: typ, Value: value})
	if errors.Is(err, errScriptExited) {
		return nil // the next agent starts with the value
	}
	return err
}

// control sends a line to the running query.
func (e *Environment) control(ctx context.Context, c runnerscripts.Control) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.mu.Lock()
	var p *process
	if e.query != nil {
		p = e.query.proc
	}
	e.mu.Unlock()
	if p == nil {
		return ErrNoQuery
	}
	err = p.send(ctx, c)
	if errors.Is(err, errScriptExited) {
		return ErrNoQuery
	}
	return err
}

const (
	// transcriptRest is how long the agent's files must be unchanged before the transcript is
	// read again.
	transcriptRest = 200 * time.Millisecond
	// transcriptWait limits how long continuous changes delay the reading. transcriptIdle limits
	// the time between readings that find nothing new.
	transcriptWait = 2 * time.Second
	transcriptIdle = 2 * time.Second
)

// WatchTranscript returns a transcript_changed event with the whole transcript each time the
// transcript has changed and then rested. It ends when ctx is done, the loop ends early or the
// environment is closed. The watch is live when WatchTranscript returns. Its sequence can be
// used once, and must be used or ctx cancelled to end the watch. WatchTranscript needs a sandbox
// that can watch files.
func (e *Environment) WatchTranscript(ctx context.Context) (iter.Seq2[runnerscripts.Event, error], error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := e.prim.Watch(ctx, e.prim.Paths().Home, primitives.WatchOptions{Debounce: transcriptRest / 2})
	if err != nil {
		leave()
		return nil, fmt.Errorf("watch the transcript: %w", err)
	}
	last, err := e.ReadTranscript(ctx)
	if err != nil {
		leave()
		drain(changes)
		return nil, fmt.Errorf("watch the transcript: %w", err)
	}
	return func(yield func(runnerscripts.Event, error) bool) {
		w := &transcriptWatch{env: e, last: last, dirty: make(chan struct{}, 1), failed: make(chan error, 1)}
		var tasks sync.WaitGroup
		tasks.Go(func() { w.collect(changes) })
		w.run(ctx, yield)
		leave() // ends collect
		tasks.Wait()
	}, nil
}

type transcriptWatch struct {
	env    *Environment
	last   runnerscripts.Transcript
	dirty  chan struct{} // something has changed
	failed chan error    // the watch has ended; nil without an error
}

// collect turns any number of changes into one mark.
func (w *transcriptWatch) collect(changes iter.Seq2[primitives.WatchEvent, error]) {
	for _, err := range changes {
		if err != nil {
			w.failed <- err
			return
		}
		select {
		case w.dirty <- struct{}{}:
		default:
		}
	}
	w.failed <- nil
}

func (w *transcriptWatch) run(ctx context.Context, yield func(runnerscripts.Event, error) bool) {
	rest := transcriptRest
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-w.failed:
			if err != nil {
				yield(runnerscripts.Event{}, fmt.Errorf("watch the transcript: %w", err))
			}
			return
		case <-w.dirty:
		}
		if !w.awaitRest(ctx, rest) {
			return
		}
		next, err := w.env.ReadTranscript(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			yield(runnerscripts.Event{}, fmt.Errorf("watch the transcript: %w", err))
			return
		case reflect.DeepEqual(next, w.last):
			// Reading may itself touch the agent's files.
			rest = min(2*rest, transcriptIdle)
			continue
		}
		w.last, rest = next, transcriptRest
		if !yield(w.env.event(runnerscripts.TypeTranscriptChanged, "", changed(next)), nil) {
			return
		}
	}
}

// awaitRest waits until nothing has changed for rest, or until the limit. It returns false if
// ctx is done.
func (w *transcriptWatch) awaitRest(ctx context.Context, rest time.Duration) bool {
	timer := time.NewTimer(rest)
	defer timer.Stop()
	most := time.NewTimer(max(rest, transcriptWait))
	defer most.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.dirty:
			timer.Reset(rest)
		case <-timer.C:
			return true
		case <-most.C:
			return true
		}
	}
}

func changed(t runnerscripts.Transcript) runnerscripts.TranscriptChanged {
	size := int64(len(t.Main))
	for _, s := range t.Subagents {
		size += int64(len(s.Transcript) + len(s.Meta))
	}
	return runnerscripts.TranscriptChanged{Transcript: t, Size: size}
}

// drain reads a watch to its end; its context is done.
func drain(changes iter.Seq2[primitives.WatchEvent, error]) {
	for _, err := range changes {
		if err != nil {
			return
		}
	}
}
