package store_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, func() store.Store) {
		return store.NewMemory(), nil
	})
}
