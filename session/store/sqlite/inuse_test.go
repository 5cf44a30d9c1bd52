package sqlite

import (
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

func TestASessionIsInUseAsLongAsItsLeaseIsHeld(t *testing.T) {
	s := opened(t, t.TempDir())
	if err := s.Create(t.Context(), store.Record{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	want := func(when string, want bool) {
		t.Helper()
		if got, err := s.InUse(t.Context(), "a"); got != want || err != nil {
			t.Errorf("%s it is in use: %v, %v", when, got, err)
		}
	}
	want("before", false)
	unlock, err := s.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	want("while the lease is held", true)
	if err := unlock(); err != nil {
		t.Error(err)
	}
	want("afterwards", false)
	if err := os.WriteFile(s.lockFile("a"), []byte("process 1 (init) on another machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("when another process has the number of the dead owner", false)
}
