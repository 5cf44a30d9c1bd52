package guest

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// endlessFolder connects to a guest that answers every request with three million list entries.
// They are small on the wire and large in memory.
func endlessFolder(t *testing.T) *Sandbox {
	t.Helper()
	const item = 4000
	frame := appendFrame(nil, frameItem, encode(&listItem{make([]primitives.FileInfo, item)}))
	return scriptedGuest(t, func(f *framer) {
		for range 3_000_000 / item {
			if f.send(frame) != nil {
				return
			}
		}
		_ = f.send(appendHeader(nil, frameEnd, 0))
	})
}

func TestTheLimitOfAListingIsTheHostsToEnforce(t *testing.T) {
	c := endlessFolder(t)
	infos, err := c.List(t.Context(), "x", primitives.ListOptions{Limit: 5000})
	if len(infos) != 5000 || !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("%d entries, %v", len(infos), err)
	}
}
