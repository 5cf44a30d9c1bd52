package sqlite

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	testleak.Main(m)
}

// opened opens a store, which is closed with the test.
func opened(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		dir := t.TempDir()
		return opened(t, dir), func() store.Store { return opened(t, dir) }
	})
}
