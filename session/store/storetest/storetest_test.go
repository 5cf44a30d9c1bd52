package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// mutants maps the name of each rule to a store that breaks it, and to what the rule says then.
var mutants = map[string]struct {
	open func(*store.Memory) store.Store
	says string
}{
	"Append/numbers_continue_without_a_gap":                       {func(m *store.Memory) store.Store { return gappy{m} }, "first event with number 0: error <nil>"},
	"Append/nothing_of_a_refused_batch_is_stored":                 {func(m *store.Memory) store.Store { return partial{m} }, ": 4 events"},
	"PutBlobs/a_failing_reader_leaves_no_half":                    {func(m *store.Memory) store.Store { return hasty{m} }, "blob of session s: error <nil>, want file does not exist"},
	"PutBlobs/a_reader_that_is_cut_off_has_failed":                {func(m *store.Memory) store.Store { return trusting{m} }, "blob whose end is missing: error <nil>, want unexpected EOF"},
	"PutBlobs/there_may_be_thousands_and_equal_ones":              {func(m *store.Memory) store.Store { return distinct{m} }, "2000 digests are not those of the 3000 contents"},
	"PutBlobs/what_sessions_share_stays_while_one_has_it":         {func(m *store.Memory) store.Store { return greedy{m} }, "file does not exist: no blob"},
	"Blob/one_that_was_never_put_does_not_exist":                  {func(m *store.Memory) store.Store { return open{m} }, "error <nil>, want file does not exist"},
	"Fork/it_has_the_record,_the_log_up_to_a_point_and_the_blobs": {func(m *store.Memory) store.Store { return whole{m} }, "event 4 where 6 comes next"},
	"Fork/it_lacks_the_blobs_that_came_after_its_events":          {func(m *store.Memory) store.Store { return hoarder{m} }, "blob of session f: error <nil>, want file does not exist"},
	"Fork/one_that_is_refused_leaves_nothing":                     {func(m *store.Memory) store.Store { return stepwise{m} }, `listed "f other s"`},
	"Lock/one_at_a_time_drives_a_session":                         {func(m *store.Memory) store.Store { return generous{m} }, "second lock: error <nil>, want the session is in use"},
	"Update/all_but_what_is_the_store's_own_changes":              {func(m *store.Memory) store.Store { return lazy{m} }, "loaded {ID:s"},
	"List/a_clock_that_goes_back_changes_nothing":                 {func(m *store.Memory) store.Store { return byTime{m} }, `listed "b a"`},
	"List/filters_choose":                                         {func(m *store.Memory) store.Store { return unfiltered{m} }, `lists "c b a", want "c b"`},
	"Delete/everything_of_the_session_is_gone":                    {func(m *store.Memory) store.Store { return undead{m} }, ", want no such session"},
	"Create/an_id_is_used_once":                                   {func(m *store.Memory) store.Store { return careless{m} }, "second create: error <nil>, want file already exists"},
}

const mutantVariable = "STORETEST_MUTANT"

// TestMutant runs the suite on a mutant. TestTheSuiteCatchesMutants runs it in a child process,
// where it must fail.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("runs as a child of TestTheSuiteCatchesMutants only")
	}
	Run(t, func(*testing.T) (store.Store, func() store.Store) { return mutants[name].open(store.NewMemory()), nil })
}

func TestTheSuiteCatchesMutants(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pattern := strings.ReplaceAll("^TestMutant/"+name+"$", "/", "$/^")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+pattern)
			cmd.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			_, failure, _ := strings.Cut(string(out), ".go:") // the first
			failure, _, _ = strings.Cut(failure, "\n")
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+name+" ") || !strings.Contains(failure, m.says) {
				t.Errorf("the suite did not catch the mutant, want %q: %v\n%s", m.says, err, out)
			}
		})
	}
}

// gappy renumbers events that do not continue the log.
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

// partial appends events one by one instead of all or none.
type partial struct{ *store.Memory }

func (p partial) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	for _, ev := range events {
		if err := p.Memory.Append(ctx, id, ev); err != nil {
			return err
		}
	}
	return nil
}

// hasty stores the part of a content that it could read.
type hasty struct{ *store.Memory }

func (h hasty) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	var failed error
	digests, err := h.Memory.PutBlobs(ctx, id, func(yield func(io.Reader, error) bool) {
		for r, err := range contents {
			if err != nil {
				yield(nil, err)
				return
			}
			var data []byte
			if data, failed = io.ReadAll(r); !yield(bytes.NewReader(data), nil) || failed != nil {
				return
			}
		}
	})
	return digests, errors.Join(err, failed)
}

// trusting takes io.ErrUnexpectedEOF for the end of a content, as io.ReadFull returns it there.
type trusting struct{ *store.Memory }

func (s trusting) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	return s.Memory.PutBlobs(ctx, id, func(yield func(io.Reader, error) bool) {
		for r, err := range contents {
			data := make([]byte, 8<<20)
			if err == nil {
				n, _ := io.ReadFull(r, data)
				r = bytes.NewReader(data[:n])
			}
			if !yield(r, err) {
				return
			}
		}
	})
}

// distinct returns the digest of equal contents once.
type distinct struct{ *store.Memory }

func (s distinct) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	digests, err := s.Memory.PutBlobs(ctx, id, contents)
	slices.Sort(digests)
	return slices.Compact(digests), err
}

// greedy removes a blob for all sessions.
type greedy struct{ *store.Memory }

func (g greedy) Delete(ctx context.Context, id string) error {
	for r := range g.List(ctx, store.Filter{}) {
		if err := g.RemoveBlobs(ctx, r.ID, digest("small")); err != nil {
			return err
		}
	}
	return g.Memory.Delete(ctx, id)
}

// open also accepts a digest in upper case.
type open struct{ *store.Memory }

func (o open) Blob(ctx context.Context, id string, d store.Digest) (io.ReadCloser, error) {
	return o.Memory.Blob(ctx, id, store.Digest(strings.ToLower(string(d))))
}

// whole forks the whole log.
type whole struct{ *store.Memory }

func (w whole) Fork(ctx context.Context, from string, _ uint64, r store.Record) error {
	old, err := w.Load(ctx, from)
	if err != nil {
		return err
	}
	return w.Memory.Fork(ctx, from, old.LastSeq, r)
}

// hoarder gives a fork all blobs of the session.
type hoarder struct{ *store.Memory }

func (h hoarder) Fork(ctx context.Context, from string, last uint64, r store.Record) error {
	if err := h.Memory.Fork(ctx, from, last, r); err != nil || from != "s" || last != 3 {
		return err
	}
	for seq := last + 1; seq <= 5; seq++ {
		if _, err := h.PutBlobs(ctx, r.ID, readers(named(seq)...)); err != nil {
			return err
		}
	}
	return nil
}

// stepwise creates the fork before it checks the log.
type stepwise struct{ *store.Memory }

func (s stepwise) Fork(ctx context.Context, from string, last uint64, r store.Record) error {
	old, err := s.Load(ctx, from)
	if err == nil && last > old.LastSeq {
		err = errors.Join(s.Create(ctx, r), fs.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return s.Memory.Fork(ctx, from, last, r)
}

// generous grants every lock.
type generous struct{ *store.Memory }

func (generous) Lock(context.Context, string) (func() error, error) {
	return func() error { return nil }, nil
}

// lazy updates only the title.
type lazy struct{ *store.Memory }

func (l lazy) Update(ctx context.Context, id string, change func(*store.Record)) error {
	return l.Memory.Update(ctx, id, func(r *store.Record) {
		changed := *r
		change(&changed)
		r.Title = changed.Title
	})
}

// byTime sorts by UpdatedAt.
type byTime struct{ *store.Memory }

func (b byTime) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		var all []store.Record
		for r := range b.Memory.List(ctx, f) {
			all = append(all, r)
		}
		slices.SortFunc(all, func(a, b store.Record) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// unfiltered ignores all of the filter but Limit.
type unfiltered struct{ *store.Memory }

func (u unfiltered) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return u.Memory.List(ctx, store.Filter{Limit: f.Limit})
}

// undead does not delete.
type undead struct{ *store.Memory }

func (u undead) Delete(ctx context.Context, id string) error {
	_, err := u.Load(ctx, id)
	return err
}

// careless replaces an existing session on Create.
type careless struct{ *store.Memory }

func (c careless) Create(ctx context.Context, r store.Record) error {
	_ = c.Delete(ctx, r.ID)
	return c.Memory.Create(ctx, r)
}
