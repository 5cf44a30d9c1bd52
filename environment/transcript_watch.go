package environment

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// transcriptRest is how long the agent's files have to be left alone until
	// the transcript is read again.
	transcriptRest = 200 * time.Millisecond
	// transcriptWait is the longest time that changes without a rest put off
	// the reading, and transcriptIdle the longest time between readings that
	// find nothing new.
	transcriptWait = 2 * time.Second
	transcriptIdle = 2 * time.Second
)

// WatchTranscript returns a transcript_changed event with the whole transcript
// each time it has changed and come to rest, until ctx is done, the loop is left
// or the environment is closed. The watch is live when WatchTranscript returns;
// its sequence can be used once, and must be used or ctx cancelled to end the
// watch. It needs a sandbox that can watch files.
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
		leave() // ends the collecting
		tasks.Wait()
	}, nil
}

type transcriptWatch struct {
	env    *Environment
	last   runnerscripts.Transcript
	dirty  chan struct{} // something has changed
	failed chan error    // the watch has ended; nil without an error
}

// collect turns changes of any number into one mark.
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
		if !w.settle(ctx, rest) {
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

// settle waits until nothing has changed for a while, but not for ever.
func (w *transcriptWatch) settle(ctx context.Context, rest time.Duration) bool {
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

// drain ends a watch whose context is done.
func drain(changes iter.Seq2[primitives.WatchEvent, error]) {
	for _, err := range changes {
		if err != nil {
			return
		}
	}
}
