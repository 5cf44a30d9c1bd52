package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Setup is what a session starts with beside the workspace. The zero value is a
// new conversation.
type Setup struct {
	// Files are written into the workspace by the runner; they count as
	// changes.
	Files []runnerscripts.WorkspaceFile
	// Transcript is restored, so that the agent remembers an earlier
	// conversation.
	Transcript *runnerscripts.Transcript
}

// PrepareSession writes what the agent needs into the sandbox and restores the
// transcript. It may be called again between queries; the next query then starts
// the agent again. [Environment.ExecuteQuery] prepares the session with a zero
// Setup if nobody did. While a query runs it returns [ErrBusy].
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

// StopAgent ends the agent, politely first, so that it writes what it has not written
// of its history yet: [Environment.ReadTranscript] then returns all of it. The next query
// starts the agent again, and it remembers. Without a running agent StopAgent does
// nothing; while a query runs it returns [ErrBusy].
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

// stopAgent is StopAgent for a caller that keeps queries from running.
func (e *Environment) stopAgent(ctx context.Context) error {
	e.mu.Lock()
	agent := e.agent
	e.mu.Unlock()
	if agent == nil {
		return nil
	}
	if err := e.awake(ctx); err != nil {
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

// prepareOnce prepares a session that nobody has prepared.
func (e *Environment) prepareOnce(ctx context.Context) (runnerscripts.SetupData, error) {
	prepared, first, err := e.isPrepared(ctx)
	if prepared || err != nil {
		return runnerscripts.SetupData{}, err
	}
	return e.setupSession(ctx, first)
}

// settle gives the agent of a copy, which nobody has asked yet, its memory.
func (e *Environment) settle(ctx context.Context) error {
	if e.first.Transcript == nil {
		return nil
	}
	_, err := e.prepareOnce(ctx)
	return err
}

// isPrepared reports whether the session is prepared, and what to prepare it with
// if not. It waits for one who is at it.
func (e *Environment) isPrepared(ctx context.Context) (bool, Setup, error) {
	select {
	case e.setup <- struct{}{}:
		defer func() { <-e.setup }()
		return e.prepared, e.first, nil
	case <-ctx.Done():
		return false, Setup{}, context.Cause(ctx)
	}
}

// ReadTranscript returns the conversation as the agent itself keeps it; an empty
// one if there is none yet.
func (e *Environment) ReadTranscript(ctx context.Context) (runnerscripts.Transcript, error) {
	if err := e.settle(ctx); err != nil {
		return runnerscripts.Transcript{}, err
	}
	result, err := e.run(ctx, runnerscripts.ReadTranscript, runnerscripts.TranscriptRequest{Session: e.session()}, nil)
	if err != nil {
		return runnerscripts.Transcript{}, err
	}
	return resultData[runnerscripts.Transcript](runnerscripts.ReadTranscript, result)
}

// ReadConversation returns the conversation so far as events, each with the time
// at which it happened, read from the agent's own history. An error ends the
// sequence, which can be used once.
func (e *Environment) ReadConversation(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if err := e.settle(ctx); err != nil {
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

// resultData decodes what a script returned.
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
