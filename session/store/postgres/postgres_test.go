package postgres

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/testpostgres"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opened opens a store, which is closed with the test.
func opened(t *testing.T, c Config, url string) *Store {
	t.Helper()
	s, err := c.Open(t.Context(), url)
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
	testpostgres.URL(t) // its server is that of all cases
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		url := testpostgres.URL(t)
		return opened(t, Config{}, url), func() store.Store { return opened(t, Config{}, url) }
	})
}
