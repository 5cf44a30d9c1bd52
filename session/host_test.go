package session

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session/store"
)

func host(t testing.TB, cfg HostConfig) *Host {
	t.Helper()
	cfg.Session.Environment.OnPermission = environment.AnswerLater
	h, err := NewHost(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return h
}

func TestAHostOpensASessionOnce(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	h := host(t, HostConfig{Store: st})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	converse(t, s, "one")
	if err := h.Unload(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prompt(t.Context(), "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("a prompt after Unload: %v", err)
	}
	var opening sync.WaitGroup
	opened := make([]*AgentSession, 8)
	for i := range opened {
		opening.Go(func() {
			again, err := h.Open(t.Context(), s.ID())
			if err != nil {
				t.Error(err)
			}
			opened[i] = again
		})
	}
	opening.Wait()
	for _, again := range opened {
		if again != opened[0] || again == s {
			t.Error("it was opened twice")
		}
	}
	if _, err := host(t, HostConfig{Store: st}).Open(t.Context(), s.ID()); !errors.Is(err, store.ErrLocked) {
		t.Errorf("another host: %v, want ErrLocked", err)
	}
	if got := converse(t, opened[0], "two"); got != "turn 2, before: one" {
		t.Errorf("the agent said %q", got)
	}
	if _, err := h.Open(t.Context(), "unknown"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown session: %v", err)
	}
	if err := opened[0].Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := h.Open(t.Context(), s.ID()); err != nil || again == opened[0] {
		t.Errorf("after Close: %v", err)
	}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := h.Open(t.Context(), s.ID()); !errors.Is(err, errHostClosed) {
		t.Errorf("after Shutdown: %v", err)
	}
}

func TestAnIdleSessionIsUnloaded(t *testing.T) {
	t.Parallel()
	h := host(t, HostConfig{Store: store.NewMemory(), Idle: 20 * time.Millisecond})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	<-s.done
	again, err := h.Open(t.Context(), s.ID())
	if err != nil || again == s {
		t.Fatalf("opened again: %v", err)
	}
	<-again.done
}

func TestASessionWithAReaderIsNotIdle(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, memory()))
	converse(t, s, "one")
	for range s.Events(t.Context(), 1) {
		if s.shutIdle(0) {
			t.Error("a session with a reader is idle")
		}
		break
	}
	if !s.shutIdle(0) {
		t.Error("a session without a reader is not idle")
	}
	if _, err := s.Prompt(t.Context(), "two"); !errors.Is(err, ErrClosed) {
		t.Errorf("a prompt to a session that is shut: %v, want ErrClosed", err)
	}
}

// Callers of Use never meet a session that the host closes as idle.
func TestASessionInUseIsNotIdle(t *testing.T) {
	t.Parallel()
	h := host(t, HostConfig{Store: store.NewMemory(), Idle: time.Millisecond})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		used, release, err := h.Use(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Millisecond) // several times the host's tick
		turn, err := used.Prompt(t.Context(), "again")
		if err == nil {
			_, err = turn.Wait(t.Context())
		}
		if err != nil {
			t.Fatalf("prompt %d: %v", i, err)
		}
		release()
		release() // twice is once
	}
}

// Nothing of a session that was removed is known to its host, also of one that cannot be opened.
func TestAHostRemovesSessions(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	h := host(t, HostConfig{Store: st})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	converse(t, s, "one")
	other, err := h.Create(t.Context(), scripted(t, memory()))
	if err == nil {
		err = h.Unload(t.Context(), other.ID())
	}
	if err == nil {
		err = st.Update(t.Context(), other.ID(), func(r *store.Record) { r.Config = []byte(`{"environment":7}`) })
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Open(t.Context(), other.ID()); err == nil {
		t.Error("a session with a broken configuration was opened")
	}
	for _, id := range []string{s.ID(), other.ID()} {
		if err := h.Destroy(t.Context(), id); err != nil {
			t.Errorf("destroy: %v", err)
		}
		if _, err := st.Load(t.Context(), id); !errors.Is(err, store.ErrNotFound) || h.Opened(id) != nil {
			t.Errorf("it is there: %v", err)
		}
		if err := h.Destroy(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("destroy again: %v, want ErrNotFound", err)
		}
	}
}

// BenchmarkOpenSessions measures the memory of an idle open session.
func BenchmarkOpenSessions(b *testing.B) {
	const sessions = 1000
	cfg := scripted(b, memory())
	for b.Loop() {
		h := host(b, HostConfig{Store: store.NewMemory()})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range sessions {
			if _, err := h.Create(b.Context(), cfg); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/sessions, "B/session")
		if err := h.Shutdown(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAHostHasTheForksOfItsSessions(t *testing.T) {
	t.Parallel()
	h := host(t, HostConfig{Store: store.NewMemory()})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	converse(t, s, "one")
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := forks[0].Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(forks, again...) {
		if opened, err := h.Open(t.Context(), f.ID()); opened != f {
			t.Errorf("the host opened a fork again: %v", err)
		}
	}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := again[0].State(t.Context()); err != nil {
		t.Errorf("its state: %v", err)
	}
	if _, err := again[0].Prompt(t.Context(), "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("a prompt after Shutdown: %v", err)
	}
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("a fork after Shutdown: %v", err)
	}
}

func TestASessionIsOpenedWithAChange(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	h := host(t, HostConfig{Store: st})
	s, err := h.Create(t.Context(), scripted(t, memory()))
	if err != nil {
		t.Fatal(err)
	}
	open := func(name string) string {
		t.Helper()
		if _, err := h.OpenAs(t.Context(), s.ID(), func(cfg *Config) { cfg.Environment.Profile.Name = name }); err != nil {
			t.Fatal(err)
		}
		stored, err := Stored(t.Context(), st, s.ID())
		if err != nil {
			t.Fatal(err)
		}
		return stored.Environment.Profile.Name
	}
	if got := open("while it is open"); got != "" {
		t.Errorf("an open session is of %q", got)
	}
	if err := h.Unload(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	if got := open("closed"); got != "closed" {
		t.Errorf("a closed session is of %q", got)
	}
	if _, err := h.OpenAs(t.Context(), "none", func(*Config) { t.Error("a session that is missing is changed") }); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a missing session: %v", err)
	}
}
