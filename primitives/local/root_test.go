package local_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives/local"
)

// The folder for sandboxes of other users is root's, and others may not read it.
func TestOnlyRootLooksForSandboxesOfOtherUsers(t *testing.T) {
	shared := t.TempDir()
	t.Setenv("TMPDIR", shared)
	shared = filepath.Join(shared, "agentenv")
	if got := local.RootFolders(local.Config{}, 0); len(got) != 2 || got[1] != shared {
		t.Errorf("root looks in %q", got)
	}
	if got := local.RootFolders(local.Config{}, 1000); len(got) != 1 || slices.Contains(got, shared) {
		t.Errorf("another user looks in %q", got)
	}
	if got := local.RootFolders(local.Config{Root: "here"}, 1000); !slices.Equal(got, []string{"here"}) {
		t.Errorf("with a root of its own it looks in %q", got)
	}
}
