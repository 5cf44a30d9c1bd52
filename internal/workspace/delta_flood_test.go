//go:build !race

package workspace

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
)

// Two bytes of 60 MiB change, so that what is between them is searched for, in bounded memory.
func TestFloodALargeBinaryChangeIsSmall(t *testing.T) {
	content := noise(rand.New(rand.NewPCG(5, 6)), 60<<20)
	content[0] = 0
	to := bytes.Clone(content)
	to[1<<20]++
	to[50<<20]++
	blobs := temporary(t)
	changes := changesOf(t, stateOf(t, blobs, map[string]string{"f": string(content)}), stateOf(t, blobs, map[string]string{"f": string(to)}))
	var patch bytes.Buffer
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := WritePatch(t.Context(), &patch, blobs, changes); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if patch.Len() > 64<<10 || after.TotalAlloc-before.TotalAlloc > 100<<20 {
		t.Errorf("the patch has %d bytes and took %d MiB", patch.Len(), (after.TotalAlloc-before.TotalAlloc)>>20)
	}
}
