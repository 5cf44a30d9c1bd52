package testmemory

import "testing"

var kept []byte

func TestPeakSeesWhatIsKeptAndNotWhatIsDropped(t *testing.T) {
	t.Cleanup(func() { kept = nil })
	if peak := Peak(t, func() {
		for range 1000 {
			kept = make([]byte, 1<<20)
		}
	}); peak > 32<<20 {
		t.Errorf("1000 MiB that were dropped one after the other count for %d MiB", peak>>20)
	}
	if peak := Peak(t, func() { kept = make([]byte, 64<<20) }); peak < 60<<20 {
		t.Errorf("64 MiB that are kept count for %d MiB", peak>>20)
	}
}
