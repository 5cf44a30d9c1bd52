package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// SessionState is what an environment knows of its session, in [Config.Session].
type SessionState struct {
	// User is the user of the session, if the program has several: an answer of the scope always holds for that user only.
	User string
	// Sources are those of the session's first sandbox, if Config.Workspace has others, such as its files as they are now. An
	// answer of the scope always holds for their folders and repositories.
	Sources []Source
	// Used is what the session has used before, in other sandboxes. It counts towards Config.Budget.Session.
	Used Used
	// From is the isolation of the sandbox that wrote Config.Workspace or the agent's memory. A new sandbox that is less
	// isolated is [ErrTrust]. Empty means that no sandbox wrote them.
	From primitives.Isolation
	// KeepPath is the path that the workspace had in the session's earlier sandbox. Programs such as Python's venv and CMake
	// have stored it in the workspace. Unless Sandbox.Workspace or Sandbox.WorkspacePath is set, the new sandbox has its
	// workspace there if it can; if it cannot, for example because another sandbox of this machine has the path, [Create]
	// logs why.
	KeepPath string
	// States is where package session stores the states of the workspace. Nil means a temporary file of this machine, for as
	// long as the environment is open.
	States *workspace.Tracker
	// CountTo is the meter of the agent that has started this one: what this one uses counts to it, too, and its limits hold
	// for both. Nil means none.
	CountTo *Meter
	// Within are the rules of the agent that has started this one, of its Rules. Permissions and those of the profile narrow
	// them.
	Within []permission.Rules
}

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
	ctx, leave, err := e.queries.Alone(ctx)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	defer leave()
	if err := e.queries.StopAgent(ctx); err != nil {
		return runnerscripts.SetupData{}, fmt.Errorf("prepare the session: %w", err)
	}
	return e.setupSession(ctx, s)
}

// StopAgent ends the agent with a grace period, in which the agent writes the rest of its
// history: [Environment.ReadTranscript] then returns all of it. The next query restarts the
// agent, which still remembers. Without a running agent StopAgent does nothing; while a query
// runs it returns [ErrBusy].
func (e *Environment) StopAgent(ctx context.Context) error {
	ctx, leave, err := e.queries.Alone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := e.queries.StopAgent(ctx); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	return nil
}

// setupSession is PrepareSession for a caller that prevents concurrent queries.
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
	result, err := e.scripts.Run(ctx, runnerscripts.SetupSession, runnerscripts.SetupRequest{
		Session: e.queries.Request(), Profile: e.profile, Files: s.Files, Transcript: s.Transcript,
	}, nil)
	if err != nil {
		return runnerscripts.SetupData{}, err
	}
	data, err := script.Data[runnerscripts.SetupData](runnerscripts.SetupSession, result)
	if e.prepared = err == nil; e.prepared {
		e.rememberAgent()
	}
	return data, err
}

// predecessor returns the conversation of the agent that worked in the sandbox before this one,
// and ends that agent; nil for none. The caller holds setup.
func (e *Environment) predecessor(ctx context.Context) (*runnerscripts.Transcript, error) {
	before := e.origin.before
	if before == nil {
		return nil, nil
	}
	working, err := e.queries.Working(ctx)
	if err != nil {
		return nil, err
	}
	if working {
		return nil, fmt.Errorf("%w: one of the agent %q; wait for its end with FollowQuery", ErrBusy, before.Name)
	}
	if err := e.queries.EndEarlierAgent(ctx); err != nil {
		return nil, err
	}
	session := e.queries.Request()
	session.Agent, session.Launch = *before, launch(before.Name, e.prim)
	result, err := e.scripts.Run(ctx, runnerscripts.ReadTranscript, runnerscripts.TranscriptRequest{Session: session}, nil)
	if err != nil {
		return nil, fmt.Errorf("read the conversation of the agent %q: %w", before.Name, err)
	}
	t, err := script.Data[runnerscripts.Transcript](runnerscripts.ReadTranscript, result)
	if err != nil || t.Main == "" {
		return nil, err
	}
	t.Agent = cmp.Or(t.Agent, before.Name) // a script of the user's own may not set it
	return &t, nil
}

// prepareOnce prepares the session unless that is done.
func (e *Environment) prepareOnce(ctx context.Context) (runnerscripts.SetupData, error) {
	prepared, first, err := e.isPrepared(ctx)
	if prepared || err != nil {
		return runnerscripts.SetupData{}, err
	}
	return e.setupSession(ctx, first)
}

// prepareFor prepares the session for a query, unless the agent before the session's agent continues it.
func (e *Environment) prepareFor(ctx context.Context, id string) (runnerscripts.SetupData, error) {
	if e.origin.before != nil {
		if goesOn, err := e.queries.GoesOn(ctx, id); goesOn || err != nil {
			return runnerscripts.SetupData{}, err
		}
	}
	return e.prepareOnce(ctx)
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
	result, err := e.scripts.Run(ctx, runnerscripts.ReadTranscript, runnerscripts.TranscriptRequest{Session: e.queries.Request()}, nil)
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	return script.Data[runnerscripts.Transcript](runnerscripts.ReadTranscript, result)
}

// ReadConversation returns the conversation as events, read from the agent's own history. Each
// event has the time at which it happened. An error ends the sequence, which can be used once.
func (e *Environment) ReadConversation(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if err := e.restoreMemory(ctx); err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		request := runnerscripts.TranscriptRequest{Session: e.queries.Request(), Events: true}
		_, err := e.scripts.Run(ctx, runnerscripts.ReadTranscript, request, func(ev runnerscripts.Event) bool {
			return yield(ev, nil)
		})
		if err != nil && !errors.Is(err, script.ErrStopped) {
			yield(runnerscripts.Event{}, err)
		}
	}
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
	ctx, leave, err := e.scripts.Enter(ctx)
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
		if !yield(w.env.scripts.Events.New(runnerscripts.TypeTranscriptChanged, "", changed(next)), nil) {
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
