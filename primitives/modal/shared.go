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

// connection is a client of the SDK that all users share who would make the same one.
type connection struct {
	*sdk.Client
	conn  atomic.Pointer[grpc.ClientConn]
	known *known

	who   identity
	users int // under shared.mu
}

// identity is a digest of all that the SDK makes a client of: who the user is, and
// where Modal is.
type identity [sha256.Size]byte

// shared are the connections of this program that are in use, and what was found out
// over these and earlier ones. The mutex is held, too, while the SDK reads the
// process's environment, which is the only way to give it the name of a profile.
var shared = struct {
	mu    sync.Mutex
	open  map[identity]*connection
	known map[identity]*known
}{open: map[identity]*connection{}, known: map[identity]*known{}}

// maxIdentities is of how many it is remembered what they have found out.
const maxIdentities = 32

// identify makes the identity of a configuration. It knows nothing of what the
// variables mean: a difference in any is one.
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

// configFile is the file of Modal's own tools.
func configFile() (string, error) {
	if file := os.Getenv("MODAL_CONFIG_PATH"); file != "" {
		return file, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".modal.toml"), err
}

// join returns a connection, which is opened if there is none; open makes its client.
func join(cfg Provider, open func(c *connection) error) (*connection, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	who := identify(cfg)
	if c := shared.open[who]; c != nil {
		c.users++
		return c, nil
	}
	c := &connection{who: who, users: 1, known: shared.known[who]}
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

// leave closes the connection after its last user.
func (c *connection) leave() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(shared.open, c.who)
		c.Close() // the SDK's
	}
}

// known are the IDs that Modal has given for names and for descriptions of images. They
// are not asked for again, for a while; who finds that one is no longer good forgets it.
type known struct {
	mu  sync.Mutex
	ids map[string]found
	// publishing is held, by sending, while a runner is looked for and published.
	publishing chan struct{}
}

type found struct {
	id string // empty: there is none
	at time.Time
}

const (
	// trust is for how long an ID is believed.
	trust = 5 * time.Minute
	// maxKnown is how many are remembered.
	maxKnown = 256
)

func (k *known) get(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f, ok := k.ids[key]; ok && time.Since(f.at) < trust {
		return f.id
	}
	return ""
}

// failed reports whether put said a short while ago that there is no ID for a key.
func (k *known) failed(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.ids[key]
	return ok && f.id == "" && time.Since(f.at) < trust
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

// recalled is the ID for a key, which is asked for if it is not known. old says that it
// was.
func (k *known) recalled(ctx context.Context, key string, ask func(context.Context) (string, error)) (id string, old bool, err error) {
	if id := k.get(key); id != "" {
		return id, true, nil
	}
	if id, err = ask(ctx); err == nil {
		k.put(key, id)
	}
	return id, false, err
}
