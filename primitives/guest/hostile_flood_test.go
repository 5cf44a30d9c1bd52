//go:build !race

package guest

import (
	"errors"
	"runtime"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFloodThatIsOnlyAnnouncedTakesNoMemory(t *testing.T) {
	c := scriptedGuest(t, func(f *framer) {
		_ = f.send(appendHeader(nil, frameReply|frameMore, maxFrame)) // and then send nothing
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 200 {
		if _, err := c.Stat(t.Context(), "x"); !errors.Is(err, primitives.ErrUnavailable) {
			t.Fatalf("Stat: %v", err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}
