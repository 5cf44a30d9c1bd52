package environment

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// placed creates an environment from sources and returns the files of its workspace.
func placed(t *testing.T, sources ...Source) tree {
	t.Helper()
	env := create(t, Config{Workspace: sources})
	changes, err := env.Changes(t.Context())
	if err != nil || len(changes) != 0 {
		t.Errorf("%d changes at the start, %v", len(changes), err)
	}
	return readTree(t, env.Primitive().Paths().Workspace)
}

// refused tries to create an environment with s, and returns the error.
func refused(t *testing.T, s Source) *SourceError {
	t.Helper()
	cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Files: []File{{Path: "ok"}}}, s}}
	env, err := Create(t.Context(), cfg)
	if err == nil {
		_ = env.Close()
		t.Fatal("no error")
	}
	var source *SourceError
	if !errors.As(err, &source) || source.Index != 1 {
		t.Fatalf("error %v, want a SourceError of workspace[1]", err)
	}
	left, _ := os.ReadDir(rootOf(cfg.Sandbox))
	for _, entry := range left {
		if entry.IsDir() {
			t.Errorf("a sandbox is left behind: %s", entry.Name())
		}
	}
	return source
}

func TestASourceThatDoesNotExistIsAnErrorOfTheConfiguration(t *testing.T) {
	file := filepath.Join(folderWith(t, tree{"f": "1"}), "f")
	for name, c := range map[string]struct {
		source Source
		says   string
	}{
		"folder":          {Source{Folder: &Folder{Path: "nosuch"}}, `workspace[1]: folder "nosuch": invalid configuration: file does not exist; `},
		"with gitignore":  {Source{Folder: &Folder{Path: "nosuch", Gitignore: true}}, `workspace[1]: folder "nosuch": invalid configuration: file does not exist; `},
		"file for folder": {Source{Folder: &Folder{Path: file}}, `workspace[1]: folder "` + file + `": invalid configuration: not a directory; `},
		"tar":             {Source{Tar: &Tar{Path: "nosuch.tar"}}, `workspace[1]: tar "nosuch.tar": invalid configuration: file does not exist; `},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused(t, c.source)
			if missing := name != "file for folder"; !errors.Is(err, ErrConfig) || errors.Is(err, fs.ErrNotExist) != missing || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestASourceOfAFileIsNamedWithTheFile(t *testing.T) {
	dir := folderWith(t, tree{"agentenv.yaml": "workspace: [{folder: nosuch}]\n"})
	cfg, err := LoadConfig(filepath.Join(dir, "agentenv.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Sandbox = sandbox(t)
	want := filepath.Join(dir, "agentenv.yaml") + `: workspace[0]: folder "` + filepath.Join(dir, "nosuch") + `": invalid configuration: file does not exist; `
	if _, err := Create(t.Context(), cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want one that begins with %s", err, want)
	}
}

func folderWith(t *testing.T, tr tree) string {
	t.Helper()
	dir := t.TempDir()
	tr.write(t, dir)
	return dir
}

func TestSourcesArePlacedInOrder(t *testing.T) {
	place := func(t *testing.T, box Sandbox) {
		noFilesLeft(t)
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range []tar.Header{
			{Name: "from-tar", Mode: 0o644, Size: 2},
			{Name: "deep/run", Mode: 0o755, Size: 2},
		} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, "t\n")
		}
		_ = w.Close()
		env := create(t, Config{Sandbox: box, Workspace: []Source{
			{Folder: &Folder{Path: folderWith(t, tree{"a": "folder", "b/c": "folder", "run": "x:1", "link": "-> b/c", "x.log": "1", "skip/me": "1"}), Ignore: []string{"*.log", "skip"}}},
			{Files: []File{{Path: "a", Content: "inline"}, {Path: "new/run", Content: "#!", Mode: 0o755}}},
			{Into: "git", Git: &Git{URL: repository(t)}},
			{Into: "tar/x", Tar: &Tar{Reader: &archive}},
		}})
		workspaceOf(t, env).mustBe(t, tree{
			"a": "inline", "b/c": "folder", "run": "x:1", "link": "-> b/c", "new/run": "x:#!",
			"git/version": "v2", "git/run.sh": "x:#!/bin/sh\n", "git/dir/link": "-> ../version", "git/.gitignore": "*.log\n",
			"tar/x/from-tar": "t\n", "tar/x/deep/run": "x:t\n",
		})
		// Only what happens from here on is a change.
		writeIn(t, env, "a", "changed")
		if err := env.Primitive().Remove(t.Context(), "new/run", false); err != nil {
			t.Fatal(err)
		}
		if got := changes(t, env); got != "modified a,deleted new/run," {
			t.Errorf("changes: %s", got)
		}
		var patch bytes.Buffer
		if err := env.Patch(t.Context(), &patch); err != nil || !strings.Contains(patch.String(), "+changed") || !strings.Contains(patch.String(), "deleted file mode 100755") {
			t.Errorf("patch %q, %v", patch.String(), err)
		}
	}
	for name, box := range boxes(t) { // one after the other: noFilesLeft sets a variable
		t.Run(name, func(t *testing.T) { place(t, box) })
	}
}

func TestTarMayBeAFileAndCompressed(t *testing.T) {
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	w := tar.NewWriter(zip)
	if err := w.WriteHeader(&tar.Header{Name: "./a/b", Mode: 0o644, Size: 1}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, "1")
	_, _ = w.Close(), zip.Close()
	name := filepath.Join(t.TempDir(), "x.tgz")
	if err := os.WriteFile(name, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	placed(t, Source{Tar: &Tar{Path: name}}).mustBe(t, tree{"a/b": "1"})

	if err := refused(t, Source{Tar: &Tar{Reader: bytes.NewReader(archive.Bytes()[:archive.Len()/2])}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an archive: %v", err)
	}
	for kind, content := range map[string]string{
		"a short text": "this is no archive", "a long text": strings.Repeat("this is no archive\n", 100), "xz": "\xfd7zXZ\x00" + strings.Repeat("x", 600),
	} {
		if err := refused(t, Source{Tar: &Tar{Reader: strings.NewReader(content)}}); !errors.Is(err, tar.ErrHeader) || !strings.Contains(err.Error(), "gzip") {
			t.Errorf("%s: %v, want an error that says what is taken", kind, err)
		}
	}
	if err := refused(t, Source{Tar: &Tar{Path: name + ".missing"}}); !errors.Is(err, fs.ErrNotExist) || err.Kind != "tar" {
		t.Errorf("no archive: %v", err)
	}
}

func TestWhatLeadsOutOfASourceIsRefused(t *testing.T) {
	archive := func(h tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		return &b
	}
	for name, s := range map[string]Source{
		"an entry above":    {Tar: &Tar{Reader: archive(tar.Header{Name: "../x", Mode: 0o644})}},
		"an absolute entry": {Tar: &Tar{Reader: archive(tar.Header{Name: "/x", Mode: 0o644})}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refused(t, s); !errors.Is(err, primitives.ErrPathEscape) {
				t.Errorf("error %v, want primitives.ErrPathEscape", err)
			}
		})
	}
	// A link that leads out is placed unchanged, but no later source is placed through it.
	outside := t.TempDir()
	leading := tree{"l": "-> " + outside, "up": "-> ../../x"}
	placed(t, Source{Folder: &Folder{Path: folderWith(t, leading)}}).mustBe(t, leading)
	for _, later := range []Source{
		{Into: "l", Files: []File{{Path: "g", Content: "2"}}},
		{Into: "l", Folder: &Folder{Path: folderWith(t, tree{"g": "2"})}},
		{Files: []File{{Path: "l/g", Content: "2"}}},
		{Folder: &Folder{Path: folderWith(t, tree{"l/g": "2"})}},
	} {
		_, err := Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{{Folder: &Folder{Path: folderWith(t, leading)}}, later}})
		if !errors.Is(err, primitives.ErrPathEscape) {
			t.Errorf("a source through a link that leads out: %v, want primitives.ErrPathEscape", err)
		}
	}
	readTree(t, outside).mustBe(t, tree{})
	// A link that stays in the workspace is followed.
	env, err := Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{
		{Folder: &Folder{Path: folderWith(t, tree{"dir/f": "1", "l": "-> dir"})}},
		{Into: "l", Files: []File{{Path: "g", Content: "2"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	readTree(t, env.Primitive().Paths().Workspace).mustBe(t, tree{"dir/f": "1", "dir/g": "2", "l": "-> dir"})
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAFIFOInAFolderIsRefusedUnlessIgnored(t *testing.T) {
	dir := folderWith(t, tree{"a": "1"})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Source{Folder: &Folder{Path: dir}}); !errors.Is(err, primitives.ErrNotRegular) {
		t.Errorf("error %v, want primitives.ErrNotRegular", err)
	}
	placed(t, Source{Folder: &Folder{Path: dir, Ignore: []string{"pipe"}}}).mustBe(t, tree{"a": "1"})
}

func TestPlacingEndsWithItsContext(t *testing.T) {
	noFilesLeft(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err := Create(ctx, Config{Sandbox: sandbox(t), Workspace: []Source{{Tar: &Tar{Reader: readerFunc(func(b []byte) (int, error) {
		cancel(enough)
		return len(b), nil // endless zeros
	})}}}})
	if err == nil {
		t.Error("no error")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
