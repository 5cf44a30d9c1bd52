package docker_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
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
