package acp

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestResumeInANewProcess(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"load", "resume", "load,resume"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			c := f.Start()
			f.Prompt(c, "say plum")
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			f.Prompt(f.Start(), "remember")
			if got := f.Said(); got != "plum\nsay plum\n" {
				t.Errorf("the agent said %q", got)
			}
			init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
			if len(init) != 2 || init[0].Resumed || !init[1].Resumed {
				t.Errorf("session_initialized: %+v", init)
			}
			f.SameAsTranscript()
		})
	}
}

func TestWhatCannotGoOnIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	f.Prompt(c, "say plum")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
		t.Errorf("without load and resume: %v", err)
	}
	tr := f.SameAsTranscript()

	// In another sandbox the agent's own files are missing.
	moved := newFixture(t, "resume")
	moved.Session.SessionID = f.Session.SessionID
	if _, err := (Driver{}).Setup(t.Context(), runnerscripts.SetupRequest{Session: moved.Session, Transcript: &tr}); err != nil {
		t.Fatal(err)
	}
	if _, err := moved.TryStart(); !agenttest.HasCode(err, runnerscripts.FailSessionNotFound) {
		t.Errorf("without the agent's own files: %v", err)
	}
	if got := moved.sameTranscriptAs(f); got.Main != tr.Main {
		t.Error("the restored transcript is another one")
	}
}

// sameTranscriptAs compares the transcript with the live conversation of another fixture.
func (f *fixture) sameTranscriptAs(live *fixture) runnerscripts.Transcript {
	f.Helper()
	f.Out = live.Out
	return f.SameAsTranscript()
}
