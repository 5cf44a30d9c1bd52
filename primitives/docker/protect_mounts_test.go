package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestNothingIsWritableBelowWhatIsReadOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string // git's configuration
		want   []string
	}{
		"hooks below a protected folder": {"[core]\n\thooksPath = .claude/x/y\n", []string{"/w rw", "/w/.claude ro", "/w/.git rw", "/w/.git/config ro"}},
		"a folder after what is below it": {
			"[core]\n\thooksPath = a/b/c\n\thooksPath = a\n",
			[]string{"/w rw", "/w/.claude ro", "/w/.git rw", "/w/.git/config ro", "/w/a ro", "/w/a/b/c ro"},
		},
		"a folder before what is below it": {
			"[core]\n\thooksPath = a\n\thooksPath = a/b/c\n",
			[]string{"/w rw", "/w/.claude ro", "/w/.git rw", "/w/.git/config ro", "/w/a ro"},
		},
		"beside it": {
			"[core]\n\thooksPath = a/b/c\n",
			[]string{"/w rw", "/w/.claude ro", "/w/.git rw", "/w/.git/config ro", "/w/a rw", "/w/a/b rw", "/w/a/b/c ro"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, d := range []string{".git", ".claude/x/y", "a/b/c"} {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, ".git/config"), []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := Config{Spec: primitives.Spec{Workspace: dir, WorkspacePath: "/w"}}.openFolders("unix:///run/docker.sock")
			if err != nil {
				t.Fatal(err)
			}
			defer cfg.folders.close()
			var got []string
			for _, m := range cfg.folders.mounts() {
				got = append(got, m.Target+map[bool]string{true: " ro", false: " rw"}[m.ReadOnly])
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("mounts %q, want %q", got, c.want)
			}
		})
	}
}

func TestOnlyAnotherFolderIsAnExchangedOne(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		fs.ErrNotExist: true, fs.ErrInvalid: true, primitives.ErrNotDirectory: true, syscall.ENOTDIR: true,
		fs.ErrPermission: false, syscall.EMFILE: false, syscall.EIO: false, context.Canceled: false,
	} {
		got := wrapFolderChanged(fmt.Errorf("workspace: %w", err))
		if errors.Is(got, ErrFolderChanged) != want || !errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}

func TestAContainerOfAnotherVersionIsNoExchangedFolder(t *testing.T) {
	t.Parallel()
	_, err := foldersOf(map[string]string{})
	if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ErrFolderChanged) || !strings.HasSuffix(err.Error(), "remove it with Remove") {
		t.Errorf("got %v", err)
	}
}
