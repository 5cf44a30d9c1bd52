package session

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

// createUsed adds a session that has used 10 tokens and was started by the session by.
func createUsed(t *testing.T, st store.Store, id, by string) {
	t.Helper()
	if err := st.Create(t.Context(), store.Record{ID: id, Metadata: map[string]string{DelegatedBy: by}}); err != nil {
		t.Fatal(err)
	}
	done := event(runnerscripts.TypeQueryCompleted, "q", runnerscripts.QueryCompleted{Usage: runnerscripts.Usage{InputTokens: 10}})
	done.Seq = 1
	if err := st.Append(t.Context(), id, done); err != nil {
		t.Fatal(err)
	}
}

// A session counts with what its log says: its program may have died before it wrote the record. Sessions that do not exist any
// more count nothing.
func TestARemovedSessionCountsAsItsLogSays(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	createUsed(t, st, "first", "")
	createUsed(t, st, "second", "first")
	createUsed(t, st, "third", "second")
	createUsed(t, st, "alone", "removed before")
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

// damaged is a store with one damaged record.
type damaged struct {
	store.Store
	id string
}

func (d damaged) Load(ctx context.Context, id string) (store.Record, error) {
	if id == d.id {
		return store.Record{ID: id}, &store.Error{Op: "load", ID: id, Err: store.ErrCorrupt}
	}
	return d.Store.Load(ctx, id)
}

func (d damaged) Update(ctx context.Context, id string, change func(*store.Record)) error {
	if id == d.id {
		return &store.Error{Op: "update", ID: id, Err: store.ErrCorrupt}
	}
	return d.Store.Update(ctx, id, change)
}

func TestASessionIsRemovedWhoseStarterHasADamagedRecord(t *testing.T) {
	t.Parallel()
	st := damaged{Store: store.NewMemory(), id: "first"}
	createUsed(t, st, "first", "")
	createUsed(t, st, "second", "first")
	if err := Remove(t.Context(), st, "second"); err != nil {
		t.Error(err)
	}
	if _, err := st.Load(t.Context(), "second"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("removed: %v", err)
	}
}

// removing is a store in which another program removes a session before the nth read of a record or log of one.
type removing struct {
	store.Store
	id   string
	left int
}

func (r *removing) read(ctx context.Context, id string) {
	if id != r.id && id != "first" {
		return
	}
	if r.left--; r.left == 0 {
		_ = Remove(ctx, r.Store, r.id) // the sum shows a failure
	}
}

func (r *removing) Load(ctx context.Context, id string) (store.Record, error) {
	r.read(ctx, id)
	return r.Store.Load(ctx, id)
}

func (r *removing) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	r.read(ctx, id)
	return r.Store.Events(ctx, id, from)
}

func TestASessionThatIsRemovedWhileItIsCountedCountsOnce(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		st := &removing{Store: store.NewMemory(), id: "second", left: n}
		createUsed(t, st, "first", "")
		createUsed(t, st, "second", "first")
		createUsed(t, st, "third", "second")
		createUsed(t, st, "fourth", "first")
		if used, err := delegatedUsage(t.Context(), st, "first"); err != nil || used.InputTokens != 30 {
			t.Errorf("removed before read %d: %+v, %v", n, used, err)
		}
		if st.left > 0 { // it was read less often
			break
		}
	}
}

func TestSessionsThatStartedEachOtherCountOnce(t *testing.T) {
	t.Parallel()
	st := store.NewMemory()
	createUsed(t, st, "first", "third")
	createUsed(t, st, "second", "first")
	createUsed(t, st, "third", "second")
	createUsed(t, st, "itself", "itself")
	for id, want := range map[string]int64{"first": 20, "itself": 0} {
		if used, err := delegatedUsage(t.Context(), st, id); err != nil || used.InputTokens != want {
			t.Errorf("%s: %+v, %v", id, used, err)
		}
		if err := Remove(t.Context(), st, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
