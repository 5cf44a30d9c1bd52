package session

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestASessionIsOpenedAgainByItsIDAlone(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	cfg.Store = store.NewMemory()
	cfg.MaxQueue, cfg.WatchWorkspace = 7, &environment.FilesOptions{Ignore: []string{"x"}}
	cfg.Environment.Agent.Env = map[string]string{"ACME_KEY": "hunter2-hunter2"}
	s := start(t, cfg)
	converse(t, s, "one")
	if _, err := Open(t.Context(), Config{Store: cfg.Store, ID: s.ID()}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("opened twice: %v, want ErrLocked", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rec, err := cfg.Store.Load(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if all := string(rec.Config) + string(rec.State); strings.Contains(all, "hunter2") || !strings.Contains(all, "ACME_KEY") {
		t.Errorf("stored: %s", all)
	}
	again := start(t, Config{Store: cfg.Store, ID: s.ID(), Environment: environment.Config{OnPermission: environment.RejectAll}})
	if got := converse(t, again, "two"); got != "turn 2, before: one" {
		t.Errorf("the agent said %q", got)
	}
	if again.cfg.MaxQueue != 7 || !reflect.DeepEqual(again.cfg.WatchWorkspace, cfg.WatchWorkspace) ||
		!reflect.DeepEqual(again.cfg.Environment.Sandbox, cfg.Environment.Sandbox) {
		t.Errorf("the configuration is %+v", again.cfg)
	}
}

func TestTheStoredConfigurationHasNoPasswords(t *testing.T) {
	t.Parallel()
	cfg := Config{Environment: environment.Config{Workspace: []environment.Source{{Git: &environment.Git{URL: "https://ada:hunter2@example.com/x.git"}}}}}
	data, err := cfg.stored()
	if err != nil || strings.Contains(string(data), "hunter2") || !strings.Contains(string(data), "https://example.com/x.git") {
		t.Errorf("stored: %s, %v", data, err)
	}
	if got := cfg.Environment.Workspace[0].Git.URL; !strings.Contains(got, "hunter2") {
		t.Errorf("the caller's source has become %q", got)
	}
}

// The state in the record is the fold of the events, including the unexported fields.
func TestTheStoredStateIsTheFoldOfTheEvents(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(write("f", "1"), say("x")), steps(runnerscripts.ScenarioStep{Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAgent, Message: "no"}}))
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	converse(t, s, "one")
	if _, err := prompt(t, s, "two").Wait(t.Context()); err == nil {
		t.Error("the query did not fail")
	}
	if err := s.SetOptions(t.Context(), Options{Mode: "m"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rec, err := cfg.Store.Load(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ReadState(t.Context(), cfg.Store, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	folded := newState()
	folded.Agent = "script"
	for ev, err := range cfg.Store.Events(context.Background(), s.ID(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		folded.apply(ev)
	}
	if savedOf(loaded) != savedOf(folded) || rec.StateSeq != rec.LastSeq || rec.Status != statusFailed {
		t.Errorf("%s at %d of %d:\n%+v\nwant\n%+v", rec.Status, rec.StateSeq, rec.LastSeq, loaded, folded)
	}
}

// savedOf formats a state with its unexported fields. If hostRequests, Pending and Queued are all
// empty, it formats them as nil.
func savedOf(st State) string {
	if len(st.hostRequests)+len(st.Pending)+len(st.Queued) == 0 {
		st.hostRequests, st.Pending, st.Queued = nil, nil, nil
	}
	return fmt.Sprintf("%+v", st)
}

// A session counts with what its log says: its program may have died before it wrote the record. Sessions that do not exist any
// more count nothing.
func TestARemovedSessionCountsAsItsLogSays(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	create := func(id, by string) {
		meta := map[string]string{DelegatedBy: by}
		if err := st.Create(t.Context(), store.Record{ID: id, Metadata: meta}); err != nil {
			t.Fatal(err)
		}
		done := event(runnerscripts.TypeQueryCompleted, "q", runnerscripts.QueryCompleted{Usage: runnerscripts.Usage{InputTokens: 10}})
		done.Seq = 1
		if err := st.Append(t.Context(), id, done); err != nil {
			t.Fatal(err)
		}
	}
	create("first", "")
	create("second", "first")
	create("third", "second")
	create("alone", "removed before")
	for _, id := range []string{"second", "third", "alone"} {
		if err := Remove(t.Context(), st, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if rec, err := st.Load(t.Context(), "first"); err != nil || rec.Delegated.InputTokens != 20 {
		t.Errorf("counted: %+v, %v", rec.Delegated, err)
	}
	if err := Remove(t.Context(), st, "third"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}
