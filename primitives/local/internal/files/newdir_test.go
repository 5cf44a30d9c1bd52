package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// step is a file of a batch. before runs when the files before it have been written.
type step struct {
	path   string
	before func()
}

func steps(s ...step) iter.Seq[primitives.File] {
	return func(yield func(primitives.File) bool) {
		for _, s := range s {
			if s.before != nil {
				s.before()
			}
			if s.path != "" && !yield(primitives.File{Path: s.path, Content: []byte(s.path)}) {
				return
			}
		}
	}
}

// wantBatch writes a batch and compares the error of each file.
func wantBatch(t *testing.T, f *FS, batch iter.Seq[primitives.File], want ...error) {
	t.Helper()
	errs, err := f.WriteFilesSeq(t.Context(), batch)
	must(t, err)
	if len(errs) != len(want) {
		t.Fatalf("%d results, want %d", len(errs), len(want))
	}
	for i, err := range errs {
		if !errors.Is(err, want[i]) {
			t.Errorf("%d: %v, want %v", i, err, want[i])
		}
	}
}

// wantTree checks that the files hold their own paths, and that nothing else exists, not even a
// temporary name.
func wantTree(t *testing.T, dir string, want ...string) {
	t.Helper()
	var got []string
	must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			got = append(got, strings.TrimPrefix(name, dir+"/"))
		} else if IsTemp(d.Name()) {
			t.Errorf("%s was left", name)
		}
		return err
	}))
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("files are %q, want %q", got, want)
	}
	for _, name := range got {
		wantFile(t, dir+"/"+name, name)
	}
}

func TestANewDirectoryAppearsWithAllItsFiles(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	missing := func(name string) func() {
		return func() {
			if _, err := os.Lstat(ws + "/" + name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is there: %v", name, err)
			}
		}
	}
	there := func(name string) func() { return func() { wantFile(t, ws+"/"+name, name) } }
	wantBatch(t, f, steps(
		step{path: "n/sub/a"}, step{"n/b", missing("n")}, step{"n/sub/c", missing("n")},
		step{"m/a", missing("n")}, step{"top", there("n/sub/c")}, step{"m/b", there("m/a")}, step{before: there("m/b")},
	), nil, nil, nil, nil, nil, nil)
	wantTree(t, ws, "m/a", "m/b", "n/b", "n/sub/a", "n/sub/c", "top")
	info, err := os.Stat(ws + "/n/sub")
	must(t, err)
	if info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", info.Mode())
	}
}

// temporary returns the directory that a batch is filling.
func temporary(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(dir + "/" + tempPrefix + "*")
	must(t, err)
	if len(names) != 1 {
		t.Fatalf("temporary names %q", names)
	}
	return names[0]
}

// Other programs make what a batch makes, while it fills a directory.
func TestNothingIsLostWhenOthersAreFaster(t *testing.T) {
	for rule, c := range map[string]struct {
		meanwhile func(ws, outside string)
		want      error    // of each file
		tree      []string // without what a link leads to
	}{
		"the directory": {
			func(ws, _ string) { must(t, os.Mkdir(ws+"/n", 0o700)) }, nil, []string{"n/a", "n/sub/b", "n/z"},
		},
		"the directory with a file": {
			func(ws, _ string) { put(t, ws+"/n/a", "old"); put(t, ws+"/n/c", "n/c") }, nil, []string{"n/a", "n/c", "n/sub/b", "n/z"},
		},
		"a file": {func(ws, _ string) { put(t, ws+"/n", "n") }, primitives.ErrNotDirectory, []string{"n"}},
		"a link inside": {
			func(ws, _ string) { must(t, errors.Join(os.Mkdir(ws+"/o", 0o755), os.Symlink("o", ws+"/n"))) }, nil, nil,
		},
		"a link out": {func(ws, outside string) { must(t, os.Symlink(outside, ws+"/n")) }, primitives.ErrPathEscape, nil},
	} {
		t.Run(rule, func(t *testing.T) {
			f, paths := open(t)
			ws, outside := paths.Workspace, t.TempDir()
			meanwhile := func() { c.meanwhile(ws, outside) }
			wantBatch(t, f, steps(step{path: "n/a"}, step{path: "n/sub/b"}, step{"n/z", meanwhile}), c.want, c.want, c.want)
			for _, name := range []string{"n/a", "n/sub/b", "n/z"} {
				if c.want == nil {
					wantFile(t, ws+"/"+name, name)
				}
			}
			if c.tree != nil {
				wantTree(t, ws, c.tree...)
			}
			if got := entries(t, outside); len(got) > 0 {
				t.Errorf("outside there are %q", got)
			}
			if info, err := os.Stat(ws + "/n"); rule == "the directory" && (err != nil || info.Mode().Perm() != 0o700) {
				t.Errorf("the directory of others: %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestAFileThatOthersHaveMadeKeepsItsMode(t *testing.T) {
	f, paths := open(t)
	name := paths.Workspace + "/n/a"
	wantBatch(t, f, steps(step{path: "n/a"}, step{"n/b", func() {
		put(t, name, "old")
		must(t, os.Chmod(name, 0o751))
	}}), nil, nil)
	wantTree(t, paths.Workspace, "n/a", "n/b")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Other programs change the directory that is being filled: they can list its name.
func TestOthersInTheDirectoryThatIsFilled(t *testing.T) {
	for rule, c := range map[string]struct {
		meanwhile func(temp, outside string)
		want      []error // of n/a, n/sub/b, n/sub/c and n/z
		tree      []string
	}{
		"links out": {
			func(temp, outside string) {
				must(t, os.Rename(temp+"/sub", temp+"/was"))
				must(t, errors.Join(os.Symlink(outside, temp+"/sub"), os.Symlink(outside+"/z", temp+"/z")))
			}, []error{nil, nil, nil, primitives.ErrPathEscape}, nil,
		},
		"a link to a folder inside": {
			func(temp, _ string) {
				must(t, os.Mkdir(temp+"/new", 0o755))
				must(t, errors.Join(os.Remove(temp+"/a"), os.Symlink("new", temp+"/z")))
			}, []error{nil, nil, nil, primitives.ErrIsDirectory}, []string{"n/sub/b", "n/sub/c"},
		},
		"a link to a file inside": {
			func(temp, _ string) { must(t, os.Symlink("w", temp+"/z")) }, []error{nil, nil, nil, nil}, nil,
		},
		"they remove it": {
			func(temp, _ string) { must(t, os.RemoveAll(temp)) },
			[]error{fs.ErrNotExist, fs.ErrNotExist, nil, nil},
			[]string{"n/sub/c", "n/z"},
		},
	} {
		t.Run(rule, func(t *testing.T) {
			f, paths := open(t)
			ws, outside := paths.Workspace, t.TempDir()
			wantBatch(t, f, steps(step{path: "n/a"}, step{path: "n/sub/b"},
				step{"n/sub/c", func() { c.meanwhile(temporary(t, ws), outside) }}, step{path: "n/z"}), c.want...)
			if c.tree != nil {
				wantTree(t, ws, c.tree...)
			}
			if got := entries(t, outside); len(got) > 0 {
				t.Errorf("outside there are %q", got)
			}
			if c.want[3] == nil {
				wantFile(t, ws+"/n/z", "n/z")
			}
		})
	}
}

// The engine may be able to read more than the programs in the sandbox.
func TestABatchDoesNotReadThroughLinks(t *testing.T) {
	f, paths := open(t)
	ws, outside := paths.Workspace, t.TempDir()
	put(t, outside+"/secret", "secret")
	errs, err := f.WriteFilesSeq(t.Context(), steps(step{path: "n/a"}, step{"n/b", func() {
		temp := temporary(t, ws)
		must(t, errors.Join(os.Remove(temp+"/a"), os.Symlink(outside+"/secret", temp+"/a")))
		put(t, ws+"/n/a", "n/a")
	}}))
	must(t, err)
	if errs[0] == nil || errs[1] != nil {
		t.Errorf("results %v", errs)
	}
	wantTree(t, ws, "n/a", "n/b")
}

func TestPathsOfABatchThatAreTooLong(t *testing.T) {
	f, paths := open(t)
	n := strings.Repeat("n", 200)
	long := n + "/" + strings.Repeat("0123456789/", 360) + "f"
	alone := write(t.Context(), f, long, "", primitives.WriteOptions{})
	must(t, os.RemoveAll(paths.Workspace+"/"+n))
	wantBatch(t, f, steps(step{path: n + "/a"}, step{path: long}, step{path: n + "/b"}), nil, kindOf(alone), nil)
	wantTree(t, paths.Workspace, n+"/a", n+"/b")
}

func TestADirectoryThatIsMissingInOneThatWasRemoved(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	wantBatch(t, f, steps(step{path: "n/a"},
		step{"n/sub/b", func() { must(t, os.RemoveAll(temporary(t, ws))) }}, step{path: "n/sub2/c"}), fs.ErrNotExist, nil, nil)
	wantTree(t, ws, "n/sub/b", "n/sub2/c")
}

// Another directory may have the temporary name at the end.
func TestOnlyWhatTheBatchMadeIsRemoved(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	put(t, ws+"/victim/f", "victim/f")
	wantBatch(t, f, steps(step{path: "n/a"}, step{"n/b", func() {
		temp := temporary(t, ws)
		must(t, errors.Join(os.Rename(temp, ws+"/moved"), os.Rename(ws+"/victim", temp), os.Mkdir(ws+"/n", 0o755)))
	}}, step{path: "m/a"}, step{path: "n/c"}), nil, nil, nil, nil)
	wantFile(t, temporary(t, ws)+"/f", "victim/f")
	must(t, os.Rename(temporary(t, ws), ws+"/victim"))
	wantTree(t, ws, "m/a", "n/a", "n/b", "n/c", "victim/f")
}

func TestADirectoryThatGoesWhileItIsFilled(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	must(t, os.Mkdir(ws+"/above", 0o755))
	wantBatch(t, f, steps(
		step{path: "above/n/a"},
		step{"above/n/b", func() { must(t, os.RemoveAll(ws+"/above")) }},
		step{path: "above/n/c"},
	), fs.ErrNotExist, nil, nil)
	wantTree(t, ws, "above/n/b", "above/n/c")
}

func TestACancelledBatchKeepsWhatWasWritten(t *testing.T) {
	f, paths := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	errs, err := f.WriteFilesSeq(ctx, steps(step{path: "n/a"}, step{path: "n/b"}, step{"n/c", cancel}))
	if !errors.Is(err, context.Canceled) || len(errs) != 2 {
		t.Errorf("%d results, %v", len(errs), err)
	}
	wantTree(t, paths.Workspace, "n/a", "n/b")
}

func TestABatchThatIsCancelledAfterItsLastFileIsComplete(t *testing.T) {
	f, paths := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	errs, err := f.WriteFilesSeq(ctx, steps(step{path: "n/a"}, step{before: cancel}))
	if err != nil || len(errs) != 1 || errs[0] != nil {
		t.Errorf("results %v, %v", errs, err)
	}
	wantTree(t, paths.Workspace, "n/a")
}

func TestABatchInAClosedSandbox(t *testing.T) {
	f, paths := open(t)
	errs, err := f.WriteFilesSeq(t.Context(), steps(step{path: "n/a"}, step{"m/b", func() { must(t, f.Close()) }}))
	must(t, err)
	if errs[0] != nil || !errors.Is(errs[1], primitives.ErrUnavailable) {
		t.Errorf("results %v", errs)
	}
	wantTree(t, paths.Workspace, "n/a")
}

func TestABatchWhereNothingCanBeMade(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	f, paths := open(t)
	must(t, os.Chmod(paths.Workspace, 0o555))
	errs, err := f.WriteFilesSeq(t.Context(), steps(step{path: "n/a"}, step{path: "n/b"}))
	must(t, err)
	for _, err := range errs {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("result %v", err)
		}
	}
	must(t, os.Chmod(paths.Workspace, 0o755))
	wantTree(t, paths.Workspace)
}

// A batch must not keep every directory open that it makes.
func TestABatchKeepsFewDirectoriesOpen(t *testing.T) {
	f, paths := open(t)
	var s []step
	most := 0
	for i := range 3 * maxDirs {
		s = append(s, step{fmt.Sprintf("n/%d/f", i), func() { most = max(most, openFiles(t)) }})
	}
	before := openFiles(t)
	errs, err := f.WriteFilesSeq(t.Context(), steps(s...))
	must(t, errors.Join(append(errs, err)...))
	if most > before+maxDirs+8 {
		t.Errorf("%d files open, %d before", most, before)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open afterwards, %d before", after, before)
	}
	if got := entries(t, paths.Workspace+"/n"); len(got) != len(s) {
		t.Errorf("%d directories", len(got))
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	n := 0
	for fd := range 4096 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			n++
		}
	}
	return n
}
