package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// transcriptTimeout bounds reading a transcript from a sandbox, so that a hung sandbox does
	// not hang the session.
	transcriptTimeout = time.Minute
	// An agent may write its history a moment after it reports the end of a query. So the
	// transcript is read again lateTranscripts times, first after lateTranscript and then after
	// twice the previous pause, 1.5 s in all.
	lateTranscript  = 100 * time.Millisecond
	lateTranscripts = 4
)

// Transcript returns the agent's own history of the conversation: from the sandbox if there is
// one, else as stored after the last query. It is empty if there is none yet.
func (s *AgentSession) Transcript(ctx context.Context) (runnerscripts.Transcript, error) {
	if err := s.check(); err != nil {
		return runnerscripts.Transcript{}, fmt.Errorf("transcript: %w", err)
	}
	if live := s.live(); live != nil {
		t, err := live.ReadTranscript(ctx)
		if err == nil || s.live() == live {
			return t, err
		}
		// The sandbox ended meanwhile, after everything was stored.
	}
	t, err := s.storedTranscript(ctx)
	if err != nil || t == nil {
		return runnerscripts.Transcript{}, err
	}
	return *t, nil
}

// saveTranscript stores the current transcript of the sandbox and returns the event that
// reports it, or its failure. It must be called before the query's last event is stored, so
// that the agent remembers every query known to be done. prompt is the prompt of a completed
// query; if the transcript lacks it, a warning event follows. The caller holds saving, and
// takes a checkpoint afterwards.
func (s *AgentSession) saveTranscript(ctx context.Context, live *liveSandbox, prompt string) ([]runnerscripts.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, transcriptTimeout)
	defer cancel()
	t, err := live.ReadTranscript(ctx)
	for i := 0; i < lateTranscripts && err == nil && !containsPrompt(t, prompt) && pause(ctx, lateTranscript<<i); i++ {
		t, err = live.ReadTranscript(ctx)
	}
	var changed runnerscripts.Event
	if err == nil {
		changed, err = s.putTranscript(ctx, live, t)
	}
	if err != nil {
		return []runnerscripts.Event{unsaved(err)}, err
	}
	events := []runnerscripts.Event{changed}
	if !containsPrompt(t, prompt) {
		events = append(events, event(runnerscripts.TypeLog, "", runnerscripts.Log{
			Level: "warn",
			Message: "the agent's history lacks the last prompt: if it does not write it before the sandbox ends, " +
				"it will not remember this query in a new one; use the version of the agent that environment.Agents names",
		}))
	}
	return events, nil
}

// saveFinalTranscript ends the agent, which may write its last records then, and stores its
// transcript if it has grown since the last query. The caller holds saving, and takes a
// checkpoint afterwards.
func (s *AgentSession) saveFinalTranscript(ctx context.Context, live *liveSandbox) []runnerscripts.Event {
	if live.saved == 0 {
		return nil // no query was saved, so there is nothing to add
	}
	ctx, cancel := context.WithTimeout(ctx, transcriptTimeout)
	defer cancel()
	before := live.saved
	var t runnerscripts.Transcript
	err := live.StopAgent(ctx)
	if err == nil {
		t, err = live.ReadTranscript(ctx)
	}
	if err == nil && sizeOf(t) > before {
		var changed runnerscripts.Event
		if changed, err = s.putTranscript(ctx, live, t); err == nil {
			return []runnerscripts.Event{changed}
		}
	}
	if err == nil || gone(err) { // the stored transcript stays
		return nil
	}
	return []runnerscripts.Event{unsaved(err)}
}

func unsaved(err error) runnerscripts.Event {
	return event(runnerscripts.TypeError, "", runnerscripts.ErrorInfo{
		Code:    failure(err).Code,
		Message: fmt.Sprintf("in a new sandbox the agent will not remember this query, because its transcript could not be stored: %v", err),
	})
}

// sizeOf returns the size of a transcript in bytes.
func sizeOf(t runnerscripts.Transcript) int64 {
	size := len(t.Main)
	for _, sub := range t.Subagents {
		size += len(sub.Transcript) + len(sub.Meta)
	}
	return int64(size)
}

// containsPrompt reports whether a transcript contains a prompt. Agents escape and wrap text in
// different ways, so containsPrompt searches only for the longest word of ASCII letters and digits;
// without such a word any transcript matches.
func containsPrompt(t runnerscripts.Transcript, prompt string) bool {
	if prompt == "" {
		return true
	}
	longest := ""
	for word := range strings.FieldsFuncSeq(prompt, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return t.Main != "" && strings.Contains(t.Main, longest)
}

// pause waits for d and reports whether ctx was not done before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
