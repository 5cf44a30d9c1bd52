package modal

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc"
)

// connection is a client of the SDK, shared by all users with the same identity.
type connection struct {
	*sdk.Client
	conn  atomic.Pointer[grpc.ClientConn]
	known *known

	identity identity
	users    int // under shared.mu
}

// identity is a digest of everything that determines a client of the SDK: the credentials and
// the address of Modal.
type identity [sha256.Size]byte

// shared holds the open connections of this process, and the IDs cached by these and earlier
// ones. The mutex is also held while the SDK reads the process's environment, which is the only
// way to pass the name of a profile.
var shared = struct {
	mu    sync.Mutex
	open  map[identity]*connection
	known map[identity]*known
}{open: map[identity]*connection{}, known: map[identity]*known{}}

// maxIdentities is for how many identities IDs are cached.
const maxIdentities = 32

// identify returns the identity of a configuration. It does not interpret environment
// variables: a difference in any variable is another identity.
func identify(cfg Provider) identity {
	sum := sha256.New()
	add := func(parts ...string) {
		for _, part := range parts {
			sum.Write([]byte(part))
			sum.Write([]byte{0})
		}
	}
	add(cfg.Environment, cfg.Profile)
	environ := os.Environ()
	slices.Sort(environ)
	add(environ...)
	if file, err := configFile(); err == nil {
		content, err := os.ReadFile(file)
		add(file, string(content))
		if err != nil {
			add(err.Error())
		}
	}
	return identity(sum.Sum(nil))
}

// configFile returns the path of the configuration file of Modal's own tools.
func configFile() (string, error) {
	if file := os.Getenv("MODAL_CONFIG_PATH"); file != "" {
		return file, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".modal.toml"), err
}

// join returns the open connection for cfg. If there is none, it creates one with open.
func join(cfg Provider, open func(c *connection) error) (*connection, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	who := identify(cfg)
	if c := shared.open[who]; c != nil {
		c.users++
		return c, nil
	}
	c := &connection{identity: who, users: 1, known: shared.known[who]}
	if c.known == nil {
		c.known = &known{ids: map[string]found{}, publishing: make(chan struct{}, 1)}
	}
	if err := open(c); err != nil {
		return nil, err
	}
	if len(shared.known) >= maxIdentities {
		clear(shared.known)
	}
	shared.open[who], shared.known[who] = c, c.known
	return c, nil
}

// leave releases a use of the connection, and closes it after the last one.
func (c *connection) leave() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(shared.open, c.identity)
		c.Close() // the SDK's
	}
}

// known caches the IDs that Modal returned for names and for descriptions of images. A caller
// that finds an ID to be invalid must call forget.
type known struct {
	mu  sync.Mutex
	ids map[string]found
	// publishing is a semaphore, acquired by sending. Its holder looks for a runner and
	// publishes it.
	publishing chan struct{}
}

type found struct {
	id string // empty: there is none
	at time.Time
}

const (
	// cacheLifetime is how long a cached ID is valid.
	cacheLifetime = 5 * time.Minute
	// maxKnown is the capacity of the cache.
	maxKnown = 256
)

func (k *known) get(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f, ok := k.ids[key]; ok && time.Since(f.at) < cacheLifetime {
		return f.id
	}
	return ""
}

// failed reports whether put recently stored for key that there is no ID.
func (k *known) failed(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.ids[key]
	return ok && f.id == "" && time.Since(f.at) < cacheLifetime
}

func (k *known) put(key, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) >= maxKnown {
		clear(k.ids)
	}
	k.ids[key] = found{id, time.Now()}
}

func (k *known) forget(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		delete(k.ids, key)
	}
}

// getOrFetch returns the cached ID for key, or calls ask and caches its result. old reports that
// the ID was cached.
func (k *known) getOrFetch(ctx context.Context, key string, ask func(context.Context) (string, error)) (id string, old bool, err error) {
	if id := k.get(key); id != "" {
		return id, true, nil
	}
	if id, err = ask(ctx); err == nil {
		k.put(key, id)
	}
	return id, false, err
}
