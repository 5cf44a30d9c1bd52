package store_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, func() store.Store) {
		return store.NewMemory(), nil
	})
}

// fill appends n events with payloads of size bytes to a session.
func fill(t *testing.T, m store.Store, id string, n, size int) {
	t.Helper()
	rec, err := m.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	payload := json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
	for i := range n {
		ev := runnerscripts.Event{Seq: rec.LastSeq + uint64(i) + 1, Type: runnerscripts.TypeRaw, Payload: payload}
		if err := m.Append(t.Context(), id, ev); err != nil {
			t.Fatal(err)
		}
	}
}

// withSession adds the session "a" to a store, and returns the store.
func withSession(t *testing.T, m *store.Memory) *store.Memory {
	t.Helper()
	if err := m.Create(t.Context(), store.Record{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	return m
}

// seqs returns the Seqs of the events of session "a", starting at from.
func seqs(t *testing.T, m store.Store, from uint64) (all []uint64, err error) {
	t.Helper()
	for ev, err := range m.Events(t.Context(), "a", from) {
		if err != nil {
			return all, err
		}
		all = append(all, ev.Seq)
	}
	return all, nil
}

func TestTheMemoryOfALogIsBounded(t *testing.T) {
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

func TestAReaderThatFallsBehindIsTold(t *testing.T) {
	m := withSession(t, store.NewMemory())
	m.MaxLog = 1 << 20
	fill(t, m, "a", 10, 64<<10)
	var got []uint64
	var failed error
	for ev, err := range m.Events(t.Context(), "a", 0) {
		if failed = err; err != nil {
			break
		}
		if got = append(got, ev.Seq); ev.Seq == 3 {
			fill(t, m, "a", 100, 64<<10)
		}
	}
	if !errors.Is(failed, store.ErrDropped) || len(got) == 0 || got[len(got)-1] != uint64(len(got)) {
		t.Errorf("events %v, %v; want a beginning without a gap and ErrDropped", got, failed)
	}
}

func TestAStreamKeepsNoEvents(t *testing.T) {
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
