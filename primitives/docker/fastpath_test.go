package docker_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
)

// TestWhatCannotBeMountedIsDoneWithout removes a mount's source after the engine has accepted the
// mount and before it mounts.
func TestWhatCannotBeMountedIsDoneWithout(t *testing.T) {
	dir, err := os.MkdirTemp("", "agentenv-test-*") //nolint:usetesting // TempDir is for this user only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	cfg := config(t, testdocker.Busybox(t)) // its runner is in the other cache
	cache := filepath.Join(dir, "cache")
	t.Setenv("XDG_CACHE_HOME", cache)
	runner, mounted := filepath.Join(dir, "runner"), filepath.Join(dir, "mounted")
	for name, takeAway := range map[string]func(){
		"the runner": func() {
			must(os.Remove(runner))
			must(os.Symlink(cfg.Runner, runner))
			must(os.Remove(mounted))
		},
		"the folder of the socket": func() { must(os.RemoveAll(cache)) },
	} {
		t.Run(name, func(t *testing.T) {
			copyFile(t, mounted, cfg.Runner)
			_ = os.Remove(runner)
			must(os.Symlink(mounted, runner))
			cfg := cfg
			p := testdocker.NewProxy(t)
			cfg.Host, cfg.Runner = p.Host(), runner
			var once sync.Once
			p.Before(func(_, path string) {
				if strings.HasSuffix(path, "/start") {
					once.Do(takeAway)
				}
			})
			if got := output(t, open(t, cfg), "echo", "works"); got != "works\n" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
