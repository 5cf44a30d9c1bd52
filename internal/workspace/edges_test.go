package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// listing is a sandbox whose List is changed.
type listing struct {
	*sandbox
	list func(dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error)
}

func (l *listing) Files() primitives.Files { return l }

func (l *listing) List(_ context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	return l.list(dir, opts)
}

func TestAFolderThatCannotBeReadIsNamed(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "a", "closed/b")
	l := &listing{sandbox: s}
	l.list = func(dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
		if opts.Strict {
			return nil, fmt.Errorf("closed: %w", fs.ErrPermission)
		}
		infos, err := s.List(t.Context(), dir, opts)
		return infos[:2], err // a and closed
	}
	var x Index
	st, err := x.Take(t.Context(), l, m, Options{})
	if err != nil || len(st.Unreadable) != 1 || !strings.Contains(st.Unreadable[0], "closed") || st.Files != 1 {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestAWorkspaceThatNoListingHoldsIsListedByFolders(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "a", "d.txt", "d/b", "d/e/c", "d/skipped/x", "f/g/h")
	skip := func(name string) bool { return name == "d/skipped" }
	var whole, parts Index
	want, err := whole.Take(t.Context(), s, m, Options{Skip: skip})
	if err != nil {
		t.Fatal(err)
	}
	l := &listing{sandbox: s}
	l.list = func(dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
		if opts.Depth == -1 && dir != "d/e" && dir != "f" {
			return nil, primitives.ErrLimit
		}
		return s.List(t.Context(), dir, opts)
	}
	got, err := parts.Take(t.Context(), l, m, Options{Skip: skip})
	if err != nil || got.Root != want.Root {
		t.Errorf("%+v, want %+v, %v", got, want, err)
	}
}

func TestListingsThatLieAreRefused(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	for _, names := range [][]string{{"../a"}, {"/a"}, {"a/../b"}, {"a", "a"}, {".."}} {
		l := &listing{sandbox: s, list: func(string, primitives.ListOptions) (infos []primitives.FileInfo, err error) {
			for _, name := range names {
				infos = append(infos, primitives.FileInfo{Path: name, Mode: fs.ModeDir | 0o755})
			}
			return infos, nil
		}}
		if st, err := new(Index).Take(t.Context(), l, m, Options{}); err == nil {
			t.Errorf("%q: %+v", names, st)
		}
	}
}

func TestAWorkspaceThatWasRefusedIsTriedAgainWhenItChanges(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.writeBytes(t, "old", random(mib, 1))
	var x Index
	opts := Options{Limit: mib + 1000}
	if _, err := x.Take(t.Context(), s, m, opts); err != nil {
		t.Fatal(err)
	}
	s.writeBytes(t, "new", random(mib/2, 2))
	if _, err := x.Take(t.Context(), s, m, opts); !errors.Is(err, primitives.ErrLimit) {
		t.Fatalf("beyond the limit: %v", err)
	}
	if n := x.Claim(); n > mib+10_000 {
		t.Errorf("what was refused has been stored: %d", n)
	}
	if err := os.Remove(s.path("old")); err != nil {
		t.Fatal(err)
	}
	if st, err := x.Take(t.Context(), s, m, opts); err != nil || st.Files != 1 {
		t.Errorf("without the old file: %+v, %v", st, err)
	}
}

// The limit is reached by the file that is read without its size.
func TestALimitIsNotForgottenWithAFileThatBecameShorter(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	for i := range 5 {
		s.writeBytes(t, fmt.Sprintf("f%d", i), random(mib, uint64(i)))
	}
	if st, err := new(Index).Take(t.Context(), &shrinking{s}, m, Options{Limit: 2*mib + 400_000}); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestAllFilesCountTowardsWhatASandboxCanBeginWith(t *testing.T) {
	old := Limit
	Limit.Bytes = mib
	defer func() { Limit = old }()
	s, m := newSandbox(t), newMemory(t)
	s.writeBytes(t, "a", random(600_000, 1))
	var x Index
	if _, err := x.Take(t.Context(), s, m, Options{}); err != nil {
		t.Fatal(err)
	}
	s.writeBytes(t, "b", random(600_000, 2))
	if st, err := x.Take(t.Context(), s, m, Options{}); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("%+v, %v", st, err)
	}
}

// replacing is a sandbox in which something else is at a path when it is packed.
type replacing struct {
	*sandbox
	do func() error
}

func (r *replacing) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	if err := r.do(); err != nil {
		return nil, err
	}
	return r.sandbox.Pack(ctx, opts)
}

func TestWhatReplacesAFileMeanwhileIsStored(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "a", "d/f", "z")
	r := &replacing{sandbox: s, do: func() error {
		return errors.Join(os.Remove(s.path("a")), os.Symlink("z", s.path("a")), os.RemoveAll(s.path("d")), os.WriteFile(s.path("d"), nil, 0o644))
	}}
	st, err := new(Index).Take(t.Context(), r, m, Options{})
	if err != nil || len(st.Unreadable) > 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	at, err := load(t.Context(), m, st.Root)
	if err != nil || at.files["a"].Target != "z" {
		t.Errorf("%+v, %v", at.files, err)
	}
}

// Unpack makes a copy of a hard link, and writes through a link to a folder.
func TestLearnKnowsNothingOfLinks(t *testing.T) {
	when := time.Unix(1_700_000_000, 0)
	pack := func(headers ...tar.Header) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			content := h.Uname // of a regular file
			h.Uname, h.ModTime, h.Mode, h.Size = "", when, 0o755, int64(len(content))
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	file := func(name, content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: content}
	}
	for what, archives := range map[string][]*bytes.Buffer{
		"a hard link":        {pack(file("x", "1.2.3")), pack(file("y", "1.2.4"), tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "y"})},
		"below a link":       {pack(file("e/x", "1.2.3"), tar.Header{Typeflag: tar.TypeSymlink, Name: "d", Linkname: "e"}), pack(file("d/x", "1.2.4"))},
		"a folder on a link": {pack(file("e/x", "1.2.3"), tar.Header{Typeflag: tar.TypeSymlink, Name: "d", Linkname: "e"}), pack(tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, file("d/x", "1.2.4"))},
	} {
		s, m := newSandbox(t), newMemory(t)
		var known, blank Index
		for _, b := range archives {
			if err := known.Learn(t.Context(), bytes.NewReader(b.Bytes()), ".", m, archive.Limit{}); err != nil {
				t.Fatal(err)
			}
			if err := primitives.Unpack(t.Context(), s, ".", b); err != nil {
				t.Fatal(err)
			}
		}
		got, want := take(t, &known, s, m), take(t, &blank, s, m)
		if got.Root != want.Root {
			t.Errorf("%s: the state is not that of the workspace", what)
		}
	}
}

func TestGitignoreFilesAreBounded(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "x", "new")
	if err := os.WriteFile(s.path(gitignore), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.path(gitignore), maxGitignores+1); err != nil {
		t.Fatal(err)
	}
	st := take(t, new(Index), s, m)
	if rules, err := Gitignores(t.Context(), m, st.Root, []string{"new"}); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("%d rules, %v", len(rules), err)
	}
}
