package storetest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// mutants are stores that break one rule each, and the rule.
var mutants = map[string]func() store.Store{
	"Append/numbers_continue_without_a_gap":                     func() store.Store { return gappy{store.NewMemory()} },
	"Append/nothing_of_a_refused_batch_is_stored":               func() store.Store { return partial{store.NewMemory()} },
	"Put/a_newer_revision_is_never_overwritten_by_an_older_one": func() store.Store { return forgetful{store.NewMemory()} },
	"Put/a_failing_reader_changes_nothing":                      func() store.Store { return hasty{store.NewMemory()} },
	"Delete/everything_of_the_session_is_gone":                  func() store.Store { return undead{store.NewMemory()} },
	"Create/an_id_is_used_once":                                 func() store.Store { return careless{store.NewMemory()} },
}

const mutantVariable = "STORETEST_MUTANT"

// TestMutant is run by TestTheSuiteCatchesMutants in a process of its own, where
// it has to fail.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("runs as a child of TestTheSuiteCatchesMutants only")
	}
	Run(t, func(*testing.T) (store.Store, func() store.Store) { return mutants[name](), nil })
}

func TestTheSuiteCatchesMutants(t *testing.T) {
	t.Parallel()
	for name := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutant$")
			cmd.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+name+" ") {
				t.Errorf("the suite did not catch the mutant: %v\n%s", err, out)
			}
		})
	}
}

// gappy renumbers what does not continue the log.
type gappy struct{ *store.Memory }

func (g gappy) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	r, err := g.Load(ctx, id)
	if err != nil {
		return err
	}
	for i := range events {
		events[i].Seq = r.LastSeq + uint64(i) + 1
	}
	return g.Memory.Append(ctx, id, events...)
}

// partial appends one event after the other.
type partial struct{ *store.Memory }

func (p partial) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	for _, ev := range events {
		if err := p.Memory.Append(ctx, id, ev); err != nil {
			return err
		}
	}
	return nil
}

// forgetful takes any revision.
type forgetful struct{ *store.Memory }

func (f forgetful) Put(ctx context.Context, id string, part store.Part, revision uint64, r io.Reader) error {
	old, rev, err := f.Get(ctx, id, part)
	if err == nil {
		revision = max(rev, revision)
		_ = old.Close()
	}
	return f.Memory.Put(ctx, id, part, revision, r)
}

// hasty stores what it could read.
type hasty struct{ *store.Memory }

func (h hasty) Put(ctx context.Context, id string, part store.Part, revision uint64, r io.Reader) error {
	data, err := io.ReadAll(r)
	if putErr := h.Memory.Put(ctx, id, part, revision, strings.NewReader(string(data))); putErr != nil {
		return putErr
	}
	return err
}

// undead keeps what it should delete.
type undead struct{ *store.Memory }

func (u undead) Delete(ctx context.Context, id string) error {
	_, err := u.Load(ctx, id)
	return err
}

// careless begins a session anew when it is created again.
type careless struct{ *store.Memory }

func (c careless) Create(ctx context.Context, r store.Record) error {
	_ = c.Delete(ctx, r.ID)
	return c.Memory.Create(ctx, r)
}
