//go:build !race

package environment

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// bomb returns a sparse archive with a file that is one hole of this size.
func bomb(t *testing.T, format, size string) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", size, "f"},
		{"tar", "--sparse", "--format=" + format, "-cf", "bomb.tar", "f"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	name := filepath.Join(dir, "bomb.tar")
	if info, err := os.Stat(name); err != nil || info.Size() > 64<<10 {
		t.Fatalf("the archive is not sparse: %v, %v", info, err)
	}
	return name
}

// onDisk returns how many bytes of disk the files below a folder take.
func onDisk(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if st, ok := info.Sys().(*syscall.Stat_t); err == nil && ok {
			total += st.Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// allocated returns how much memory a function allocates in total.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const mib = 1 << 20

func TestFloodOfASparseArchiveTakesNoDisk(t *testing.T) {
	noFilesLeft(t)
	hole := folderWith(t, tree{"f": ""})
	if err := os.Truncate(filepath.Join(hole, "f"), 32*mib); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Source{
		"gnu":    {Tar: &Tar{Path: bomb(t, "gnu", "32M")}},
		"posix":  {Tar: &Tar{Path: bomb(t, "posix", "32M")}},
		"folder": {Folder: &Folder{Path: hole}},
	} {
		t.Run(name, func(t *testing.T) {
			box := sandbox(t)
			// Keep, so that the sandbox also stores its baseline.
			env := create(t, Config{Sandbox: toKeep(box), Workspace: []Source{s}})
			info, err := env.Primitive().Stat(t.Context(), "f")
			if err != nil || info.Size != 32*mib {
				t.Fatalf("%+v, %v", info, err)
			}
			if used := onDisk(t, rootOf(box)); used > 4*mib {
				t.Errorf("the sandbox takes %d MiB of disk", used/mib)
			}
			// A hole in a file also stays a hole in the compared copy.
			writeIn(t, env, "f", "\x00\x00a")
			var patch bytes.Buffer
			if err := env.Patch(t.Context(), &patch); err != nil || !strings.Contains(patch.String(), "GIT binary patch") {
				t.Errorf("a patch of %d bytes, %v", patch.Len(), err)
			}
			if err := Remove(t.Context(), box, env.ID()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFloodOfASourceBeyondTheLimitIsRefused(t *testing.T) {
	noFilesLeft(t)
	hole := folderWith(t, tree{"f": ""})
	if err := os.Truncate(filepath.Join(hole, "f"), 12<<40); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Source{
		"gnu":    {Tar: &Tar{Path: bomb(t, "gnu", "17G")}},
		"posix":  {Tar: &Tar{Path: bomb(t, "posix", "17G")}},
		"folder": {Folder: &Folder{Path: hole}},
		"listed": {Folder: &Folder{Path: hole, Gitignore: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			memory := allocated(func() { err = refused(t, s) })
			if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "16 GiB") || !strings.Contains(err.Error(), "ignore") {
				t.Errorf("error %v, want primitives.ErrLimit, the limit and what to do", err)
			}
			if memory > 64*mib {
				t.Errorf("%d MiB of memory", memory/mib)
			}
		})
	}
}

func TestFloodInAWorkspaceEndsEverythingThatReadsIt(t *testing.T) {
	noFilesLeft(t)
	env := create(t, Config{Workspace: []Source{{Files: []File{{Path: "f"}}}}})
	if err := os.Truncate(filepath.Join(env.Primitive().Paths().Workspace, "f"), 12<<40); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"changes": func() error { _, err := env.Changes(t.Context()); return err },
		"patch":   func() error { return env.Patch(t.Context(), io.Discard) },
		"move": func() error {
			moved, err := env.Move(t.Context(), Config{Sandbox: sandbox(t)})
			if moved != nil {
				_ = moved.Close()
			}
			return err
		},
	} {
		var err error
		memory := allocated(func() { err = do() })
		if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), `"f"`) || !strings.Contains(err.Error(), "16 GiB") {
			t.Errorf("%s: %v, want primitives.ErrLimit, the file and the limit", name, err)
		}
		if memory > 64*mib {
			t.Errorf("%s: %d MiB of memory", name, memory/mib)
		}
	}
}
