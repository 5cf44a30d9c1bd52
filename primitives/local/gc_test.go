package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// orphan replaces the owner of a sandbox by a program that has died.
func orphan(t *testing.T, session string) {
	t.Helper()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	edit(t, session, func(st map[string]any) {
		st["owner"].(map[string]any)["pid"] = dead.Process.Pid
	})
}

func edit(t *testing.T, session string, change func(map[string]any)) {
	t.Helper()
	file := filepath.Join(primitives.PathsIn(session).App, "sandbox.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var st map[string]any
	if err := json.Unmarshal(data, &st); err != nil {
		t.Fatal(err)
	}
	change(st)
	if data, err = json.Marshal(st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// abandon makes a sandbox without a handle whose owner has died.
func abandon(t *testing.T, cfg local.Config) string {
	t.Helper()
	s, err := local.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	orphan(t, s.Paths().Session)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s.ID()
}

// gc returns the IDs of the sandboxes that GC removed. It checks that a dry run returned the same
// IDs.
func gc(t *testing.T, cfg local.Config, opts primitives.GCOptions) string {
	t.Helper()
	dry := opts
	dry.DryRun = true
	var took [2]string
	for i, o := range []primitives.GCOptions{dry, opts} {
		found, err := local.Provider{Root: cfg.Root}.GC(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			took[i] += " " + f.ID
			if f.Why == "" {
				t.Errorf("%+v does not say why", f)
			}
		}
	}
	if took[0] != took[1] {
		t.Errorf("the dry run told of %q, then GC took %q", took[0], took[1])
	}
	return strings.TrimSpace(took[1])
}

func TestGCTakesSandboxesOfDeadProgramsOnly(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	garbage := abandon(t, cfg)
	stay := cfg
	stay.Keep = true
	kept := abandon(t, stay)
	owned := newSandbox(t, cfg)
	attached, err := local.Attach(t.Context(), cfg, abandon(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(cfg.Root, "aaaaaaaaaaaaaaaa", "src")
	if err := os.MkdirAll(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := gc(t, cfg, primitives.GCOptions{NoGrace: true}); got != garbage {
		t.Errorf("GC took %q, want %q", got, garbage)
	}
	left, err := os.ReadDir(cfg.Root)
	if err != nil || len(left) != 4 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, s := range []*local.Sandbox{owned, attached} {
		if _, err := s.Stat(t.Context(), "."); err != nil {
			t.Error(err)
		}
	}
	if err := attached.Close(); err != nil {
		t.Fatal(err)
	}
	if got := gc(t, cfg, primitives.GCOptions{NoGrace: true}); got != attached.ID() {
		t.Errorf("after Close GC took %q, want %q", got, attached.ID())
	}
	if s, err := local.Attach(t.Context(), cfg, kept); err != nil {
		t.Error(err)
	} else if _, err := s.Terminate(t.Context()); errors.Join(err, s.Close()) != nil {
		t.Error(err)
	}
}

func TestGCNeedNotWait(t *testing.T) {
	cfg := local.Config{Root: t.TempDir(), Grace: 3600 * time.Second}
	id := abandon(t, cfg)
	if got := gc(t, cfg, primitives.GCOptions{NoGrace: true}); got != id {
		t.Errorf("GC took %q, want %q", got, id)
	}
}

func TestGCEndsWhatStillRuns(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	s := newSandbox(t, cfg)
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	orphan(t, s.Paths().Session)
	// Release the handle's lock, as if its program had been killed.
	life := filepath.Join(s.Paths().App, "life")
	if err := errors.Join(os.Rename(life, life+"2"), os.WriteFile(life, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := gc(t, cfg, primitives.GCOptions{NoGrace: true}); got != s.ID() {
		t.Errorf("GC took %q, want %q", got, s.ID())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if status, err := p.Wait(ctx); err == nil && status.Success() {
		t.Errorf("the command ended with %+v", status)
	}
}

// making locks root until the test ends, as a program does while it makes a sandbox.
func making(t *testing.T, root string) {
	t.Helper()
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
}

func TestGCRemovesIncompleteSandboxes(t *testing.T) {
	cfg := local.Config{Root: t.TempDir()}
	for name, c := range map[string]struct {
		make func(t *testing.T, session string) error
		left bool
	}{
		"folder only":        {func(_ *testing.T, s string) error { return os.Mkdir(s, 0o700) }, false},
		"being made":         {func(t *testing.T, s string) error { making(t, cfg.Root); return os.Mkdir(s, 0o700) }, true},
		"somebody's content": {func(_ *testing.T, s string) error { return os.MkdirAll(s+"/src", 0o700) }, true},
		"no life file": {func(t *testing.T, s string) error {
			id := abandon(t, cfg)
			return errors.Join(os.Rename(filepath.Join(cfg.Root, id), s), os.Remove(s+"/app/life"))
		}, false},
		"removal": {func(_ *testing.T, s string) error {
			return os.MkdirAll(filepath.Join(cfg.Root, ".removed-"+filepath.Base(s), "workspace", "x"), 0o700)
		}, false},
		"ended": {func(t *testing.T, s string) error {
			id := abandon(t, cfg)
			return errors.Join(os.Rename(filepath.Join(cfg.Root, id), s), os.WriteFile(s+"/app/life", []byte("terminated\n"), 0o600))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			session := filepath.Join(cfg.Root, "abcdefghabcdefgh")
			if err := c.make(t, session); err != nil {
				t.Fatal(err)
			}
			if took := gc(t, cfg, primitives.GCOptions{}); (took == "") != c.left {
				t.Errorf("GC took %q", took)
			}
			left, err := os.ReadDir(cfg.Root)
			if err != nil || (len(left) > 0) != c.left {
				t.Errorf("left: %v, %v", left, err)
			}
			if err := os.RemoveAll(session); err != nil {
				t.Error(err)
			}
		})
	}
}
