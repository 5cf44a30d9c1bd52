package engine

import (
	"strings"
	"sync"

	"github.com/docker/docker/client"
)

// A program may have hundreds of sandboxes on the engine of its machine. They share one
// client. Each call has its own connection, so that no sandbox can harm another through
// it. A sandbox on a remote engine has its own client, which may be an ssh login or have
// certificates that change.

// engineKey identifies the clients of an engine of this machine that are interchangeable. An engine
// that was replaced by another version needs another client.
type engineKey struct{ host, version string }

// engines are the clients of this program that sandboxes share.
var engines = struct {
	mu      sync.Mutex
	clients map[engineKey]*client.Client
	users   map[*client.Client]int
}{clients: map[engineKey]*client.Client{}, users: map[*client.Client]int{}}

// Share returns the client to use instead of eng: a shared one, or eng itself. The engine must have
// answered eng, so that the API version is negotiated. The caller must call [Release], not Close.
func Share(eng *client.Client) *client.Client {
	if !strings.HasPrefix(eng.DaemonHost(), "unix://") {
		return eng
	}
	key := engineKey{eng.DaemonHost(), eng.ClientVersion()}
	engines.mu.Lock()
	defer engines.mu.Unlock()
	first := engines.clients[key]
	if first == nil {
		first = eng
		engines.clients[key] = eng
	}
	engines.users[first]++
	if first != eng {
		_ = eng.Close() // it keeps no connections
	}
	return first
}

// ShareAgain returns a client like eng for one more user, who must call [Release].
func ShareAgain(eng *client.Client, host string) (*client.Client, error) {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	if engines.users[eng] == 0 {
		return Connect(host)
	}
	engines.users[eng]++
	return eng, nil
}

// Release closes a client, shared or not, when its last user releases it.
func Release(eng *client.Client) error {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	if n := engines.users[eng]; n > 1 {
		engines.users[eng] = n - 1
		return nil
	}
	if engines.users[eng] == 1 {
		delete(engines.users, eng)
		delete(engines.clients, engineKey{eng.DaemonHost(), eng.ClientVersion()})
	}
	return eng.Close()
}
