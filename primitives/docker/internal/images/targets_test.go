package images

import (
	"fmt"
	"testing"
)

func TestProofsAreBounded(t *testing.T) {
	var p Proofs
	for i := range 3 * maxProofs {
		key := fmt.Sprint(i)
		p.Add(key)
		if !p.Has(key) || len(p.keys) > maxProofs {
			t.Fatalf("%d: %d keys", i, len(p.keys))
		}
	}
}
