package docker_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func TestAReadOnlyMountIsReadOnlyThroughout(t *testing.T) {
	t.Parallel()
	testneed.Root(t, "it mounts a file system")
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	mkdirs(t, below)
	if err := unix.Mount("none", below, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	cfg := config(t, testdocker.Busybox(t))
	cfg.Mounts = []docker.Mount{{Source: dir, Target: "/m", ReadOnly: true}}
	if res := script(t, open(t, cfg), "touch /m/below/made"); res.Status.Success() {
		t.Error("a file was made")
	}
	if list, err := os.ReadDir(below); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// Root in a container may not enter what is closed to others: it has no capabilities.
func TestAWorkspaceThatTheUserMayNotEnter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 1000, 1000), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	for user, ok := range map[string]bool{"": false, "4711": false, "1000:1000": true} {
		cfg := marked(t, config(t, testdocker.Busybox(t)))
		cfg.Workspace, cfg.User = dir, user
		s, err := docker.New(t.Context(), cfg)
		if err == nil {
			if !ok {
				t.Errorf("user %q may enter", user)
			}
			if got := output(t, s, "sh", "-c", "echo 1 > f && stat -c %u:%g f"); got != "1000:1000\n" {
				t.Errorf("the file is of %q", got)
			}
			_, terr := s.Terminate(t.Context())
			if err := errors.Join(terr, s.Close()); err != nil {
				t.Error(err)
			}
			continue
		}
		var wrong *primitives.SettingError
		if ok || !errors.As(err, &wrong) || wrong.Setting != "user" || !strings.HasSuffix(wrong.Problem, `give the user of that folder, as in user: "1000:1000"`) {
			t.Errorf("user %q: %v", user, err)
		}
	}
	noContainersOf(t, t.Name())
}
