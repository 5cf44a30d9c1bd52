package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestContract runs the whole contract with control groups. Without them it runs the groups in
// which processes are found, for another user those that the user's rights affect.
func TestContract(t *testing.T) {
	t.Run("groups", func(t *testing.T) { contract(t, nil, local.New) })
	t.Run("sweeping", func(t *testing.T) {
		contract(t, []string{"exec", "ending", "terminal", "lifecycle", "copies"}, local.NewSweeping)
	})
	t.Run("user", func(t *testing.T) {
		testneed.Root(t, "only root runs commands as another user")
		contract(t, []string{"exec", "archive", "lifecycle"}, func(ctx context.Context, cfg local.Config) (*local.Sandbox, error) {
			if err := os.Chmod(filepath.Dir(cfg.Root), 0o711); err != nil { // for the user
				return nil, err
			}
			cfg.User = "4242:4242" // a user that the contract does not use
			return local.New(ctx, cfg)
		})
	})
}

func contract(t *testing.T, groups []string, open func(context.Context, local.Config) (*local.Sandbox, error)) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var root atomic.Pointer[string]
	t.Cleanup(func() { killEscapees(root.Load()) })
	primitivestest.Run(t, primitivestest.Harness{
		Groups: groups,
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			root.Store(&dir)
			return open(ctx, local.Config{Root: dir, Runner: self})
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			return local.Attach(ctx, local.Config{Root: dir}, id)
		},
		Provider: func(dir string) (primitives.Provider, primitives.Spec) {
			return local.Provider{Root: dir, Runner: func(context.Context, string, string) (string, error) { return self, nil }}, primitives.Spec{}
		},
		Destroy: func(_ context.Context, p primitives.EnvironmentPrimitive) error {
			if err := os.RemoveAll(p.Paths().Session); err != nil {
				return err
			}
			for pid := range marked(t, p.ID()) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
			return nil
		},
	})
}

// killEscapees kills the programs of the suite that a sweep cannot find: those that cleared their
// environment, left their session and lost their parent.
func killEscapees(root *string) {
	if root == nil || *root == "" {
		return
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		exe, err := os.Readlink(link)
		pid, aerr := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err == nil && aerr == nil && strings.HasPrefix(exe, *root+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
