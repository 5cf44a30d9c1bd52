package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// open makes a sandbox that is terminated and closed with the test.
func open(t *testing.T, cfg docker.Config) *guest.Sandbox {
	t.Helper()
	s, err := docker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := s.Terminate(context.WithoutCancel(t.Context()))
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func output(t *testing.T, s *guest.Sandbox, args ...string) string {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: args}, primitives.RunOptions{})
	if err != nil || !res.Status.Success() {
		t.Fatalf("%q: %+v, %v: %s", args, res.Status, err, res.Stderr)
	}
	return string(res.Stdout)
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBusyboxAsRootWithABoundWorkspace(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Workspace = t.TempDir()
	cfg.Env = map[string]string{"MINE": "yes"}
	s := open(t, cfg)
	if got := output(t, s, "sh", "-c", "echo $IMAGE_MARK $MINE; id -u; echo x >made; pwd"); got != "from-image yes\n0\n/workspace\n" {
		t.Errorf("the command printed %q", got)
	}
	if found, err := filepath.Glob(filepath.Join(cfg.Workspace, "*")); err != nil || len(found) != 1 {
		t.Errorf("the folder holds %v, %v", found, err)
	}
	list, err := (docker.Config{}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(i primitives.Info) bool {
		return i.ID == s.ID() && i.Owned && i.Status == primitives.StatusRunning && i.GuestVersion == guest.Version
	}) {
		t.Errorf("the list lacks %s: %+v", s.ID(), list)
	}
}

func TestABoundWorkspaceIsWhereItIsWanted(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Workspace = t.TempDir()
	cfg.WorkspacePath = cfg.Workspace
	s := open(t, cfg)
	if got := output(t, s, "sh", "-c", "echo x >made; pwd"); got != cfg.Workspace+"\n" || s.Paths().Workspace != cfg.Workspace {
		t.Errorf("commands run in %q, and the workspace is %s", got, s.Paths().Workspace)
	}
	if _, err := os.Stat(filepath.Join(cfg.Workspace, "made")); err != nil {
		t.Error(err)
	}
}

func TestAContainerThatIsKilledFromOutsideIsNoExitStatus(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := testdocker.Engine(t).ContainerKill(t.Context(), s.ID(), "KILL"); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); status.Reason != primitives.ReasonLost && !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Wait: %+v, %v", status, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat: %v", err)
	}
	state, err := s.Poll(t.Context())
	if err != nil || state.Running() || state.Exit.Signal != primitives.SIGKILL && state.Status != primitives.StatusLost {
		t.Errorf("Poll: %+v, %v", state, err)
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	busybox := testdocker.Busybox(t)
	taken := open(t, config(t, busybox))
	for name, c := range map[string]struct {
		change func(*docker.Config)
		want   error
	}{
		"no image":        {func(c *docker.Config) { c.Image = "" }, fs.ErrInvalid},
		"unknown image":   {func(c *docker.Config) { c.Image = "agentenv-test-missing:none" }, fs.ErrNotExist},
		"name taken":      {func(c *docker.Config) { c.Name = taken.ID() }, fs.ErrExist},
		"bad name":        {func(c *docker.Config) { c.Name = "a/b" }, fs.ErrInvalid},
		"bad platform":    {func(c *docker.Config) { c.Platform = "linux" }, fs.ErrInvalid},
		"other platform":  {func(c *docker.Config) { c.Platform = "windows/amd64" }, errors.ErrUnsupported},
		"memory":          {func(c *docker.Config) { c.Memory = 1 }, fs.ErrInvalid},
		"pids":            {func(c *docker.Config) { c.Pids = 1 }, fs.ErrInvalid},
		"pull":            {func(c *docker.Config) { c.Pull = "sometimes" }, fs.ErrInvalid},
		"host network":    {func(c *docker.Config) { c.Network = "host" }, fs.ErrInvalid},
		"missing network": {func(c *docker.Config) { c.Network = "agentenv-test-no-such-network" }, fs.ErrNotExist},
		"missing mount":   {func(c *docker.Config) { c.Mounts = []docker.Mount{{Source: "/no/such", Target: "/m"}} }, fs.ErrNotExist},
		"engine's socket": {func(c *docker.Config) { c.Mounts = []docker.Mount{{Source: "/", Target: "/m"}} }, fs.ErrInvalid},
		"no engine":       {func(c *docker.Config) { c.Host = "unix:///no/such.sock" }, primitives.ErrUnavailable},
		"bad address":     {func(c *docker.Config) { c.Host = "localhost" }, fs.ErrInvalid},
		"missing runner":  {func(c *docker.Config) { c.Runner = "/no/such" }, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, busybox)
			c.change(&cfg)
			s, err := docker.New(t.Context(), cfg)
			if err == nil {
				t.Fatal("no error", s.Close())
			}
			var where *primitives.Error
			if !errors.Is(err, c.want) || !errors.As(err, &where) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestAttachRefusesForeignContainers(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{
		Image: testdocker.Busybox(t), Cmd: []string{"true"}, Labels: testdocker.Labels(),
	}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := docker.Attach(t.Context(), docker.Config{}, made.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Attach: %v", err)
	}
	if err := eng.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
}
