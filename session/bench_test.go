package session

import (
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// One prompt of a session, against the same in an environment without one: the
// difference is numbering, storing, and reading the transcript back.
func BenchmarkPrompt(b *testing.B) {
	cfg := scripted(b, steps(say("hello")))
	b.Run("environment", func(b *testing.B) {
		env, err := environment.Create(b.Context(), cfg.Environment)
		if err != nil {
			b.Fatal(err)
		}
		defer env.Close()
		for b.Loop() {
			for _, err := range env.ExecuteQuery(b.Context(), environment.Query{Prompt: "a"}) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("session", func(b *testing.B) {
		s, err := Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		for b.Loop() {
			turn, err := s.Prompt(b.Context(), "a")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := turn.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A message of a megabyte that comes in small chunks.
func BenchmarkApply(b *testing.B) {
	const chunks = 1 << 17
	ev := chunk(runnerscripts.TypeAgentMessage, "m", "12345678")
	b.SetBytes(chunks * 8)
	b.ReportAllocs()
	for b.Loop() {
		c := NewConversation()
		for range chunks {
			c.Apply(ev)
		}
		if len(c.Blocks[0].Text) != chunks*8 {
			b.Fatal("text was lost")
		}
	}
}

// Opening a session with a long log reads what the record holds of it, and not the log.
func BenchmarkOpen100000Events(b *testing.B) {
	sessions, err := sqlite.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer sessions.Close()
	cfg := scripted(b, steps(say("hello")))
	cfg.Store = sessions
	reopen := func() *AgentSession {
		s, err := Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s := reopen()
	cfg.ID = s.ID()
	for range 100 {
		events := make([]runnerscripts.Event, 1000)
		for i := range events {
			events[i] = event(runnerscripts.TypeLog, "", runnerscripts.Log{Level: "info", Message: "one of many"})
		}
		if err := s.append(b.Context(), events...); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.append(b.Context(), event(runnerscripts.TypeSessionIdle, "", struct{}{})); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s := reopen()
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
