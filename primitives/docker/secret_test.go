package docker_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// Every user of the machine sees command lines, and an image may be copied elsewhere.
func TestVariablesAreOnNoCommandLine(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	cfg := config(t, testdocker.Busybox(t))
	cfg.Env = map[string]string{"TOKEN": secret, "MULTI": "a\nb"}
	s := open(t, cfg)
	if got := output(t, s, "sh", "-c", `echo "$TOKEN $MULTI"; env | grep -c AGENTENV_VAR || true`); got != secret+" a\nb\n0\n" {
		t.Errorf("got %q", got)
	}
	eng := testdocker.Engine(t)
	found, err := eng.ContainerInspect(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", found.State.Pid))
	if err != nil || strings.Contains(string(line), secret) {
		t.Errorf("the command line is %q, %v", line, err)
	}
	id, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (docker.Config{}).RemoveSnapshot(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	img, err := eng.ImageInspect(t.Context(), id)
	if err != nil || strings.Contains(fmt.Sprint(img.Config), secret) {
		t.Errorf("the image holds %+v, %v", img.Config, err)
	}
	cfg.Image, cfg.Env = id, nil
	if got := output(t, open(t, cfg), "sh", "-c", "env"); strings.Contains(got, secret) || strings.Contains(got, "AGENTENV_VAR") {
		t.Errorf("a sandbox made of it has %s", got)
	}
}
