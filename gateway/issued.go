package gateway

import (
	"crypto/sha256"
	"sync"
)

// issued are the tokens of this program's gateways. They tell a token of another session from one
// of none.
var issued = tokens{gateways: map[[sha256.Size]byte]int{}}

// tokens counts the gateways of each token, by its digest.
type tokens struct {
	mu       sync.Mutex
	gateways map[[sha256.Size]byte]int
}

// add adds a gateway. The caller must call remove once.
func (t *tokens) add(digest [sha256.Size]byte) (remove func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gateways[digest]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.gateways[digest]--; t.gateways[digest] == 0 {
			delete(t.gateways, digest)
		}
	}
}

// isForeign reports whether token is that of another session of this program.
func (g *Gateway) isForeign(token string) bool {
	digest := sha256.Sum256([]byte(token))
	issued.mu.Lock()
	defer issued.mu.Unlock()
	return issued.gateways[digest] > 0 && digest != g.digest
}
