package session

import (
	"context"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnInterruptStopsTheRunningQueryOnly(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("begun"), forever(), say("never")), steps(say("next"))))
	running, queued := prompt(t, s, "a"), prompt(t, s, "b")
	await(t, s, runnerscripts.TypeAgentMessage)
	if err := s.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, running); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason of the running query %q", done.StopReason)
	}
	if done := complete(t, queued); done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason of the queued query %q", done.StopReason)
	}
}

func TestAnInterruptStopsTheMakingOfTheSandbox(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	entered := make(chan struct{}, 1)
	slow := true
	cfg.Create = func(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
		if slow {
			slow = false
			entered <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return environment.Create(ctx, cfg)
	}
	s := start(t, cfg)
	turn := prompt(t, s, "a")
	<-entered
	if err := s.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason %q", done.StopReason)
	}
	if got := converse(t, s, "b"); got != "x" {
		t.Errorf("the next query said %q", got)
	}
}

func TestAQueuedPromptCanBeWithdrawn(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(forever()), steps(say("{{prompt}}"))))
	running := prompt(t, s, "a")
	await(t, s, runnerscripts.TypeQueryStarted)
	queued, last := prompt(t, s, "b"), prompt(t, s, "c")
	if err := queued.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, queued); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason of the withdrawn prompt %q", done.StopReason)
	}
	if err := running.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	complete(t, running)
	complete(t, last)
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeQueryStarted && ev.QueryID == queued.ID() {
			t.Error("the withdrawn prompt was started")
		}
	}
	// All have ended: there is nothing to interrupt.
	for _, err := range []error{s.Interrupt(t.Context()), queued.Interrupt(t.Context()), last.Interrupt(t.Context())} {
		if err != nil {
			t.Errorf("interrupt of what has ended: %v", err)
		}
	}
}

func TestATurnTellsNothingOfTheQueriesBeforeIt(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(forever()), steps(say("mine"))))
	running := prompt(t, s, "a")
	await(t, s, runnerscripts.TypeQueryStarted)
	queued := prompt(t, s, "b")
	if err := running.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	var last runnerscripts.Event
	for ev, err := range queued.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.QueryID == running.ID() {
			t.Errorf("event of another query: %s", ev.Type)
		}
		last = ev
	}
	if last.Type != runnerscripts.TypeQueryCompleted || last.QueryID != queued.ID() {
		t.Errorf("the last event is %+v", last)
	}
}
