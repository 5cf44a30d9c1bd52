package session

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestAQueryEndsAtItsSizeAndASessionToo(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	cfg := scripted(t, steps(say(long), say(long), forever()), steps(say("short")), steps(say(long), forever()), steps(say("never")))
	cfg.Store, cfg.CheckpointInterval, cfg.NoFiles = store.NewMemory(), -1, true
	cfg.MaxQuerySize, cfg.MaxSessionSize = 150_000, 280_000
	s := start(t, cfg)
	limited := func(turn *Turn, says string) {
		t.Helper()
		_, err := turn.Wait(t.Context())
		failed, ok := errors.AsType[*QueryError](err)
		if !ok || failed.Failure.Code != runnerscripts.FailLimit || !errors.Is(err, primitives.ErrLimit) || !strings.Contains(failed.Failure.Message, says) {
			t.Errorf("the query ended with %v", err)
		}
	}
	limited(prompt(t, s, "one"), "MaxQuerySize")
	if st, err := s.State(t.Context()); err != nil || st.Size < 150_000 {
		t.Errorf("the session has %d bytes, %v", st.Size, err)
	}
	if got := converse(t, s, "two"); got != "short" { // the limit of a query is that of each
		t.Errorf("the next query said %q", got)
	}
	limited(prompt(t, s, "three"), "MaxSessionSize")
	if _, err := s.Prompt(t.Context(), "four"); !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "MaxSessionSize") {
		t.Errorf("a prompt beyond the size of the session: %v", err)
	}
}

// A new sandbox begins with files that the store has: they must not fill the session again.
func TestTheFilesOfANewSandboxCountOnce(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, []runnerscripts.ScenarioStep{{Write: &runnerscripts.ScenarioWrite{Path: "big", Content: strings.Repeat("x", 512<<10)}}}, []runnerscripts.ScenarioStep{{Text: "done"}})
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	complete(t, prompt(t, s, "one"))
	first, _ := s.State(t.Context())
	s = reopen(t, s, cfg)
	complete(t, prompt(t, s, "two"))
	second, _ := s.State(t.Context())
	if n := len(second.Checkpoints); first.Size < 512<<10 || n < 2 || second.Environment.Starts != 2 || second.Size-first.Size > 100<<10 {
		t.Errorf("%d bytes, and %d after %d checkpoints and %d sandboxes", first.Size, second.Size, n, second.Environment.Starts)
	}
}
