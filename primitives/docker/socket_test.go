package docker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestTheGuestIsReachedByASocket connects to one container from programs that may and may not use
// its socket.
func TestTheGuestIsReachedByASocket(t *testing.T) {
	cfg := config(t, testdocker.Scratch(t)) // its runner is in the other cache
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	moved := func(cfg *docker.Config) func() bool {
		var log lockedBuffer // New logs also what it does in the background
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log})
		return func() bool { return strings.Contains(log.String(), "socket=true") }
	}
	folders := func() []string {
		found, err := filepath.Glob(filepath.Join(cache, "agentenv", "link", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	cfg.User = "4242:4242"
	usesSocket := moved(&cfg)
	s := open(t, cfg)
	if !usesSocket() || len(folders()) != 1 {
		t.Fatalf("the socket is used %v, in %v", usesSocket(), folders())
	}
	use := func(p primitives.EnvironmentPrimitive) {
		t.Helper()
		if err := p.WriteFile(t.Context(), "f", bytes.NewReader(make([]byte, 1<<20)), primitives.WriteOptions{}); err != nil {
			t.Error(err)
		}
		if b, err := primitives.ReadFile(t.Context(), p, "f", 0); len(b) != 1<<20 || err != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
	use(s)
	for name, tt := range map[string]struct {
		change func(*docker.Config)
		want   bool
	}{
		"another handle":        {func(*docker.Config) {}, true},
		"NoSocket":              {func(c *docker.Config) { c.NoSocket = true }, false},
		"another user's folder": {func(*docker.Config) { t.Setenv("XDG_CACHE_HOME", t.TempDir()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", cache)
			cfg := cfg
			tt.change(&cfg)
			usesSocket := moved(&cfg)
			other, err := docker.Attach(t.Context(), cfg, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			if usesSocket() != tt.want {
				t.Errorf("the socket is used: %v", !tt.want)
			}
			use(other)
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	t.Setenv("XDG_CACHE_HOME", cache)
	// A link in place of the folder is not followed, and its target is not removed.
	elsewhere := t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	must(os.WriteFile(kept, nil, 0o600))
	folder := folders()[0]
	must(os.Remove(folder))
	must(os.Symlink(elsewhere, folder))
	joined := cfg
	usesSocket = moved(&joined)
	other, err := docker.Attach(t.Context(), joined, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if usesSocket() {
		t.Error("the link was followed")
	}
	use(other)
	must(other.Close())
	_, err = s.Terminate(t.Context())
	must(err)
	if left := folders(); len(left) != 0 {
		t.Errorf("after Terminate there is %v", left)
	}
	_, err = os.Stat(kept)
	must(err)
}
