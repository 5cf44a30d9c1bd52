package files

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestPermissionsCountForAnOrdinaryUser(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	f, paths := open(t)
	ws := paths.Workspace
	ctx := t.Context()
	put(t, ws+"/readonly", "old")
	must(t, os.Chmod(ws+"/readonly", 0o444))
	put(t, ws+"/secret", "x")
	must(t, os.Chmod(ws+"/secret", 0))
	put(t, ws+"/locked/in/file", "x")
	must(t, os.Chmod(ws+"/locked", 0o555))
	t.Cleanup(func() { must(t, os.Chmod(ws+"/locked", 0o755)) })
	put(t, ws+"/closed/file", "x")
	t.Cleanup(func() { must(t, os.Chmod(ws+"/closed", 0o755)) })
	must(t, os.Chmod(ws+"/closed", 0))
	must(t, os.Symlink("readonly", ws+"/link"))
	_, openErr := f.Open(ctx, "secret")
	_, listErr := f.List(ctx, "closed", primitives.ListOptions{})
	_, statErr := f.Stat(ctx, "closed/file")
	for rule, err := range map[string]error{
		"read an unreadable file":                openErr,
		"list an unreadable directory":           listErr,
		"stat in an unreadable directory":        statErr,
		"replace a read-only file":               write(ctx, f, "readonly", "new", primitives.WriteOptions{}),
		"replace it through a link":              write(ctx, f, "link", "new", primitives.WriteOptions{}),
		"append to a read-only file":             write(ctx, f, "readonly", "new", primitives.WriteOptions{Append: true}),
		"write into a read-only directory":       write(ctx, f, "locked/new", "new", primitives.WriteOptions{}),
		"make a parent in a read-only directory": write(ctx, f, "locked/new/file", "new", primitives.WriteOptions{}),
		"make a directory there":                 f.Mkdir(ctx, "locked/d", 0),
		"remove from there":                      f.Remove(ctx, "locked/in", true),
		"move from there":                        f.Move(ctx, "locked/in", "x"),
		"write where only root may":              write(ctx, f, "/etc/agentenv-test", "x", primitives.WriteOptions{}),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	errs, err := f.WriteFiles(ctx, []primitives.File{{Path: "readonly"}, {Path: "fine"}})
	if err != nil || !errors.Is(errs[0], fs.ErrPermission) || errs[1] != nil {
		t.Errorf("batch: %v %v", errs, err)
	}
	wantFile(t, ws+"/readonly", "old")
	if got := paths1(t, f, primitives.ListOptions{Depth: -1}); len(got) != 7 { // locked/in was emptied
		t.Errorf("an unreadable directory is listed without its entries: %q", got)
	}
	r, err := f.Pack(ctx, ".", primitives.PackOptions{Ignore: []string{"secret"}})
	must(t, err)
	defer r.Close()
	if _, err := readAll(r); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("packing an unreadable directory: %v", err)
	}
}

func TestRemoveGrantsItselfTheRightsThatAnOwnerHas(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	f, paths := open(t)
	ws := paths.Workspace
	put(t, ws+"/tree/a/b/file", "x")
	put(t, ws+"/tree/c/file", "x")
	must(t, os.Chmod(ws+"/tree/a/b", 0))
	must(t, os.Chmod(ws+"/tree/c", 0o400))
	must(t, os.Chmod(ws+"/tree", 0o555))
	must(t, f.Remove(t.Context(), "tree", true))
	if got := entries(t, ws); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}

func TestUnpackedReadOnlyDirectoriesAreFilledFirst(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	f, paths := open(t)
	must(t, f.Unpack(t.Context(), "out", archive(t,
		entryOf("dir/", dirEntry, "", 0o555), entryOf("dir/file", fileEntry, "x", 0o444), entryOf("dir/sub/", dirEntry, "", 0o500),
		entryOf("dir/sub/file", fileEntry, "y", 0),
	)))
	wantFile(t, paths.Workspace+"/out/dir/file", "x")
	if info, err := f.Stat(t.Context(), "out/dir"); err != nil || info.Mode != fs.ModeDir|0o555 {
		t.Errorf("%v %v", info.Mode, err)
	}
	must(t, f.Remove(t.Context(), "out", true))
}
