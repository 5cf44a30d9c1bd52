package docker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// TestTheRunnerOfAContainer checks which handles know that the guest of a container is the runner of
// this machine, and that it is the only copy.
func TestTheRunnerOfAContainer(t *testing.T) {
	const at = "/agentenv/envrunner"
	for name, c := range map[string]struct {
		change   func(*docker.Config)
		attached string // to another handle
	}{
		"mounted":      {func(*docker.Config) {}, ""}, // the file may have changed
		"copied":       {func(c *docker.Config) { c.Keep = true }, at},
		"another user": {func(c *docker.Config) { c.Keep, c.User = true, "4242:4242" }, at},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testdocker.Busybox(t))
			c.change(&cfg)
			other := anotherRunner(t, cfg.Runner)
			s := open(t, cfg)
			copies, err := s.Fork(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer end(t, copies[0])
			again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := again.Close(); err != nil {
					t.Error(err)
				}
			}()
			for name, handle := range map[string]struct {
				p    primitives.EnvironmentPrimitive
				want string
			}{"made": {s, at}, "a copy": {copies[0], at}, "attached": {again, c.attached}} {
				if got := primitives.RunnerPath(handle.p, cfg.Runner); got != handle.want {
					t.Errorf("%s: the runner is %q, want %q", name, got, handle.want)
				}
				for _, file := range []string{other, "", filepath.Join(t.TempDir(), "nosuch")} {
					if got := primitives.RunnerPath(handle.p, file); got != "" {
						t.Errorf("%s: another program, %q, is %q", name, file, got)
					}
				}
			}
			if got := output(t, s, "sh", "-c", "ls "+at+"* && test -x "+at); got != at+"\n" {
				t.Errorf("there are %q", got)
			}
		})
	}
}

// anotherRunner returns a file that differs from the runner.
func anotherRunner(t *testing.T, runner string) string {
	t.Helper()
	data, err := os.ReadFile(runner)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "runner")
	if err := os.WriteFile(name, append(data, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}
