package session

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// warnings are the messages of the log events of level warn.
func warnings(t *testing.T, s *AgentSession) []string {
	t.Helper()
	var all []string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeLog {
			if l := payload[runnerscripts.Log](t, ev); l.Level == "warn" && strings.Contains(l.Message, "history") {
				all = append(all, l.Message)
			}
		}
	}
	return all
}

func stored(t *testing.T, s *AgentSession) string {
	t.Helper()
	got, err := s.storedTranscript(t.Context())
	if err != nil || got == nil {
		t.Fatalf("stored transcript %v, %v", got, err)
	}
	return got.Main
}

func TestAnAgentThatWritesItsHistoryLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, reads := newFake(), 0
		f.recall = func(history string, _ bool) (string, error) {
			if reads++; reads <= 3 {
				return "", nil
			}
			return history, nil
		}
		s := startFake(t, Config{HealthInterval: -1}, f)
		complete(t, prompt(t, s, "my name is Zoe"))
		if got := stored(t, s); !strings.Contains(got, "Zoe") {
			t.Errorf("stored %q", got)
		}
		if w := warnings(t, s); len(w) > 0 {
			t.Errorf("warned of %q", w)
		}
	})
}

func TestAHistoryWithoutTheLastPromptIsAWarning(t *testing.T) {
	t.Parallel()
	for name, history := range map[string]string{"empty": "", "of before": "hello\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.recall = func(string, bool) (string, error) { return history, nil }
				s := startFake(t, Config{HealthInterval: -1}, f)
				complete(t, prompt(t, s, "remember 17 äpfel"))
				if w := warnings(t, s); len(w) != 1 {
					t.Errorf("warnings %q", w)
				}
				inOrder(t, logOf(t, s), runnerscripts.TypeTranscriptChanged, runnerscripts.TypeLog, runnerscripts.TypeQueryCompleted)
			})
		})
	}
}

func TestWhatAnAgentWritesWhenItEndsIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		first.recall = func(history string, stopped bool) (string, error) {
			if !stopped {
				return "", nil
			}
			return history, nil
		}
		s := startFake(t, Config{HealthInterval: -1}, first, second)
		complete(t, prompt(t, s, "my name is Zoe"))
		if err := s.TerminateEnvironment(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := stored(t, s); !strings.Contains(got, "Zoe") {
			t.Errorf("stored %q", got)
		}
		inOrder(t, logOf(t, s), runnerscripts.TypeQueryCompleted, runnerscripts.TypeTranscriptChanged, runnerscripts.TypeEnvironmentTerminated)
	})
}

func TestTheEndOfASandboxTakesNothingFromTheStoredHistory(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(string, bool) (string, error){
		"died":   func(string, bool) (string, error) { return "", primitives.ErrUnavailable },
		"shrunk": func(string, bool) (string, error) { return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			s := startFake(t, Config{HealthInterval: -1}, f)
			complete(t, prompt(t, s, "my name is Zoe"))
			f.mu.Lock()
			f.recall = end
			f.mu.Unlock()
			if err := s.TerminateEnvironment(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, s); !strings.Contains(got, "Zoe") {
				t.Errorf("stored %q", got)
			}
			if n := count(logOf(t, s), runnerscripts.TypeError); n > 0 {
				t.Errorf("%d errors of what was stored before", n)
			}
		})
	}
}
