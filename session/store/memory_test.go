package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) { testleak.Main(m) }

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
