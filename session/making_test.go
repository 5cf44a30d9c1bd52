package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestOptionsThatAreSetWhileTheSandboxIsMadeReachTheAgent(t *testing.T) {
	t.Parallel()
	f := newFake()
	s := startFake(t, Config{}, f)
	f.prepare = func(ctx context.Context) error { return s.SetOptions(ctx, Options{Model: "m", Mode: "plan"}) }
	complete(t, prompt(t, s, "a"))
	if !slices.Equal(f.options, []string{"m", "plan"}) {
		t.Errorf("the agent was given %q", f.options)
	}
}

func TestCloseWhileTheSandboxIsMadeCancelsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFake()
	making := make(chan struct{})
	f.prepare = func(ctx context.Context) error {
		close(making)
		<-ctx.Done()
		return ctx.Err()
	}
	s := startFake(t, Config{}, f)
	turn := prompt(t, s, "a")
	<-making
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason %q", done.StopReason)
	}
}

// The reader of the last event may be faster than the worker.
func TestASessionCanBeForkedAsSoonAsTheLastEventIsThere(t *testing.T) {
	t.Parallel()
	s := startFake(t, Config{}, newFake())
	complete(t, prompt(t, s, "a"))
	s.mu.Lock()
	s.active = &activeTurn{}
	s.mu.Unlock()
	err := s.idle()
	s.mu.Lock()
	s.active = nil
	s.mu.Unlock()
	if err != nil {
		t.Error(err)
	}
}

func TestASandboxThatCouldNotBeEndedWhenIdleIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.ending = errors.New("no answer")
		s, err := open(t.Context(), fakeConfig(Config{IdleTimeout: time.Hour, HealthInterval: -1}), only(f))
		if err != nil {
			t.Fatal(err)
		}
		complete(t, prompt(t, s, "a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		var told []string
		for _, ev := range logOf(t, s) {
			if ev.Type == runnerscripts.TypeError {
				told = append(told, payload[runnerscripts.ErrorInfo](t, ev).Message)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0], "fake") || !strings.Contains(told[0], "no answer") {
			t.Errorf("told %q", told)
		}
		if err := s.Close(); !errors.Is(err, f.ending) {
			t.Errorf("close: %v", err)
		}
	})
}
