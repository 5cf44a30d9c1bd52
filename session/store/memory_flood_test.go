//go:build !race

package store_test

import (
	"cmp"
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestFloodOfEventsKeepsALogBounded(t *testing.T) {
	for name, c := range map[string]struct {
		limit   int64
		n, size int
	}{
		"by default":          {0, 300, 4 << 20},
		"in small events":     {8 << 20, 200_000, 150},
		"one is over it":      {1 << 20, 20, 8 << 20},
		"empty ones count":    {8 << 20, 200_000, 2},
		"of more than 32 MiB": {32 << 20, 200, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			m := withSession(t, store.NewMemory())
			m.MaxLog = c.limit
			limit := cmp.Or(c.limit, store.DefaultMaxLog)
			testmemory.AtMost(t, 2*limit+48<<20, func() { fill(t, m, "a", c.n, c.size) })
			if _, err := seqs(t, m, 1); !errors.Is(err, store.ErrDropped) {
				t.Errorf("the first event: %v, want ErrDropped", err)
			}
			last := uint64(c.n)
			if got, err := seqs(t, m, last); err != nil || len(got) != 1 || got[0] != last {
				t.Errorf("the last event: %v, %v", got, err)
			}
		})
	}
}

func TestFloodOfEventsIsNotKeptByAStream(t *testing.T) {
	var got []uint64
	full := errors.New("no room")
	m := withSession(t, store.NewStream(func(ev runnerscripts.Event) error {
		if ev.Seq > 100 {
			return full
		}
		got = append(got, ev.Seq)
		return nil
	}))
	testmemory.AtMost(t, 16<<20, func() { fill(t, m, "a", 100, 1<<20) })
	if len(got) != 100 || got[0] != 1 || got[99] != 100 {
		t.Errorf("events %v", got)
	}
	if _, err := seqs(t, m, 100); !errors.Is(err, store.ErrDropped) {
		t.Errorf("the last event: %v, want ErrDropped", err)
	}
	err := m.Append(t.Context(), "a", runnerscripts.Event{Seq: 101})
	if rec, _ := m.Load(t.Context(), "a"); !errors.Is(err, full) || rec.LastSeq != 100 {
		t.Errorf("an event that is not taken: %v, the last is %d", err, rec.LastSeq)
	}
	if err := m.Append(t.Context(), "a", runnerscripts.Event{Seq: 105}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a gap: %v", err)
	}
}
