package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// said runs a shell script in a sandbox and returns what it prints.
func said(t *testing.T, s primitives.EnvironmentPrimitive, script string) string {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"sh", "-c", script}}, primitives.RunOptions{})
	if err != nil || res.Status.Code != 0 {
		t.Fatalf("%s: %v, %v: %s", script, res.Status, err, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// A Python venv, a CMake cache and absolute links store the path of their workspace, so each container has
// its workspace at the same path, with the right owner.
func TestTheWorkspaceIsAtOnePathInAllContainers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*docker.Config)
		want   string // path, owner and mode
	}{
		"root":                 {func(*docker.Config) {}, "/workspace 0:0 755"},
		"a number":             {func(c *docker.Config) { c.User = "4711" }, "/workspace 4711:0 755"},
		"a number and group":   {func(c *docker.Config) { c.User = "4711:4712" }, "/workspace 4711:4712 755"},
		"a name":               {func(c *docker.Config) { c.User = "tester" }, "/workspace 1000:1000 755"},
		"a path":               {func(c *docker.Config) { c.WorkspacePath, c.User = "/home/me/src", "tester" }, "/home/me/src 1000:1000 755"},
		"root at a path":       {func(c *docker.Config) { c.WorkspacePath = "/home/me/src" }, "/home/me/src 0:0 755"},
		"root that may switch": {func(c *docker.Config) { c.CapAdd = []string{"SETUID", "SETGID", "KILL"} }, "/workspace 0:0 755"},
		"read-only, a name":    {func(c *docker.Config) { c.ReadOnly, c.User = true, "tester" }, "/agentenv/workspace 1000:1000 755"},
		"read-only, root":      {func(c *docker.Config) { c.ReadOnly = true }, "/agentenv/workspace 0:0 755"},
		"streams":              {func(c *docker.Config) { c.NoSocket = true }, "/workspace 0:0 755"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			c.change(&cfg)
			s := open(t, cfg)
			if got := said(t, s, `echo "$(pwd) $(stat -c '%u:%g %a' .)"; touch f`); got != c.want {
				t.Errorf("the workspace is %s, want %s", got, c.want)
			}
		})
	}
}

// Copies and sandboxes of a snapshot have the workspace where the original has it.
func TestCopiesHaveTheWorkspaceAtItsPath(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	cfg.WorkspacePath, cfg.User = "/src/app", "tester"
	s := open(t, cfg)
	said(t, s, `echo kept >f; ln -s "$PWD/f" link`)
	copies, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, copies[0])
	if got := said(t, copies[0], "pwd; cat link"); got != "/src/app\nkept" {
		t.Errorf("the copy: %s", got)
	}
	id, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cfg.RemoveSnapshot(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	cfg.Image, cfg.WorkspacePath = id, ""
	t.Run("snapshot", func(t *testing.T) {
		if got := said(t, open(t, cfg), "pwd; cat link"); got != "/src/app\nkept" {
			t.Errorf("the sandbox of the snapshot: %s", got)
		}
		cfg.WorkspacePath = "/elsewhere"
		_, err := docker.New(t.Context(), cfg)
		if wrong, ok := errors.AsType[*primitives.SettingError](err); !ok || wrong.Setting != "workspace_path" || !strings.Contains(err.Error(), "/src/app") {
			t.Errorf("another path than that of the snapshot: %v", err)
		}
	})
}

// An image may have a folder at the path of the workspace: its files are there, as for the WORKDIR of a
// container.
func TestAFolderOfTheImageIsTheWorkspace(t *testing.T) {
	for _, user := range []string{"", "tester"} {
		cfg := config(t, testdocker.Busybox(t))
		cfg.WorkspacePath, cfg.User = "/tmp", user
		if got := said(t, open(t, cfg), "pwd; touch f"); got != "/tmp" {
			t.Errorf("user %q works in %s", user, got)
		}
	}
	cfg := config(t, testdocker.Busybox(t))
	cfg.WorkspacePath = "/etc/passwd"
	_, err := docker.New(t.Context(), cfg)
	if wrong, ok := errors.AsType[*primitives.SettingError](err); !ok || wrong.Problem != "/etc/passwd is not a folder; choose another path" {
		t.Errorf("a file at the path: %v", err)
	}
}

// A mount in the workspace would lose its files when another checkpoint is restored.
func TestAMountInTheWorkspaceIsRefused(t *testing.T) {
	dir := t.TempDir()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Mounts = []docker.Mount{{Source: dir, Target: "/workspace/cache"}}
	if _, err := docker.New(t.Context(), cfg); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "name the folder as workspace") {
		t.Errorf("the error is %v", err)
	}
	cfg.WorkspacePath = "/src"
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	said(t, open(t, cfg), "touch /workspace/cache/f")
}
