package local_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// packed returns an archive of entries; the content of a file is its name.
func packed(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write([]byte(h.Name))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func openFolder(t *testing.T, dir string) *local.Folder {
	t.Helper()
	f, err := local.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Nothing from a sandbox is written outside of the folder, even by several copies.
func TestCopiesStayInTheFolder(t *testing.T) {
	top := t.TempDir()
	dir := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	for name, c := range map[string]struct {
		entries []tar.Header
		refused bool
	}{
		"links that lead out":     {[]tar.Header{link("t", "../victim"), link("s", ".."), link("abs", top), link("self", "/proc/self/cwd/..")}, false},
		"a chain of links":        {[]tar.Header{dir("a"), dir("a/b"), link("a/b/s", "../.."), link("t", "a/b/s/../victim"), file("t")}, false},
		"a chain, later made":     {[]tar.Header{link("t", "a/b/s/../../victim"), dir("a"), dir("a/b"), link("a/b/s", "../..")}, false},
		"a folder becomes a link": {[]tar.Header{dir("a"), link("t", "a/b/../../victim"), link("a/b", ".."), link("s", "a/b/..")}, false},
		"an absolute link":        {[]tar.Header{link("t", "/"), file("t/victim")}, true},
		"a link above":            {[]tar.Header{link("t", ".."), file("t/victim")}, true},
		"a file above":            {[]tar.Header{file("../victim")}, true},
		"a hard link to above":    {[]tar.Header{{Typeflag: tar.TypeLink, Name: "t", Linkname: "../victim"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			top := filepath.Join(top, strings.ReplaceAll(name, " ", "-"))
			victim, out := filepath.Join(top, "victim"), filepath.Join(top, "out")
			if err := errors.Join(os.Mkdir(top, 0o700), os.WriteFile(victim, []byte("mine"), 0o600)); err != nil {
				t.Fatal(err)
			}
			err := openFolder(t, out).Unpack(t.Context(), packed(t, c.entries...))
			if errors.Is(err, primitives.ErrPathEscape) != c.refused || err != nil && !c.refused {
				t.Errorf("error %v, an escape: want %t", err, c.refused)
			}
			// Later copies use what earlier ones have made.
			for _, name := range []string{"t", "s", "abs", "self", "s/out", "a", "a/b", "a/b/s", "abs/x", "t/y"} {
				for _, dir := range []string{filepath.Join(out, name), filepath.Join(out, filepath.Dir(name))} {
					if f, err := local.OpenFolder(dir); err == nil {
						_ = f.WriteFile(t.Context(), filepath.Base(name), strings.NewReader("evil"), 0o644, time.Time{})
						_ = f.WriteFile(t.Context(), "victim", strings.NewReader("evil"), 0o644, time.Time{})
						_ = f.Unpack(t.Context(), packed(t, file(filepath.Base(name)), file(filepath.Base(name)+"/victim"), file("victim")))
						_ = f.Close()
					}
				}
			}
			if content, err := os.ReadFile(victim); err != nil || string(content) != "mine" {
				t.Errorf("a file outside holds %q, %v", content, err)
			}
			if names, err := os.ReadDir(top); err != nil || len(names) != 2 {
				t.Errorf("beside the folder there are %v, %v", names, err)
			}
		})
	}
}

func TestALinkInThePathOfAFolderIsFollowedWithinItsFolder(t *testing.T) {
	top := t.TempDir()
	for link, target := range map[string]string{"in": "real/deep", "out/up": "../real", "out/abs": filepath.Join(top, "real"), "dangling": "made"} {
		name := filepath.Join(top, link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.MkdirAll(filepath.Join(top, "real", "deep"), 0o700), os.Symlink(target, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(top, "out"))
	for dir, want := range map[string]string{"../in": "real/deep", filepath.Join(top, "in", "new"): "real/deep/new", "../dangling/x": "made/x", "": "out", "..": "."} {
		f := openFolder(t, dir)
		when := time.Unix(1_000_000_000, 0)
		if err := f.WriteFile(t.Context(), "f", strings.NewReader("x"), 0o600, when); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if info, err := os.Stat(filepath.Join(top, want, "f")); err != nil || !info.ModTime().Equal(when) || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	for _, dir := range []string{"up", "abs", "up/deep", "abs/new"} {
		f, err := local.OpenFolder(dir)
		if f != nil || !errors.Is(err, primitives.ErrPathEscape) || !strings.Contains(err.Error(), "symbolic link") || strings.Contains(err.Error(), "workspace") {
			t.Errorf("%s: %v, %v", dir, f, err)
		}
	}
}

func TestWhatIsWrittenToAFolderIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := os.WriteFile(name, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	f := openFolder(t, dir)
	broken := errors.New("the sandbox has gone")
	err := f.WriteFile(t.Context(), "f", io.MultiReader(strings.NewReader("new"), iotest.ErrReader(broken)), 0o777, time.Time{})
	if err != broken { //nolint:errorlint // as it is
		t.Errorf("error %v, want that of the reader and nothing else", err)
	}
	if content, err := os.ReadFile(name); err != nil || string(content) != "old" {
		t.Errorf("content %q, %v", content, err)
	}
	if err := f.WriteFile(t.Context(), "f", strings.NewReader("new"), 0o777, time.Time{}); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o640 || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestUnpackLeavesModesToTheHost(t *testing.T) {
	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := openFolder(t, out).Unpack(t.Context(), packed(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "mine/", Mode: 0o777},
		tar.Header{Typeflag: tar.TypeDir, Name: "new/", Mode: 0o555},
		tar.Header{Typeflag: tar.TypeReg, Name: "new/f", Mode: 0o6777},
	))
	if err != nil {
		t.Fatal(err)
	}
	reference := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(reference, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	mode := func(name string) os.FileMode {
		t.Helper()
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode() &^ os.ModeDir
	}
	if got := mode(filepath.Join(out, "mine")); got != 0o700 {
		t.Errorf("a folder that was there has mode %v", got)
	}
	if got := mode(filepath.Join(out, "new")); got&0o700 != 0o700 {
		t.Errorf("a new folder has mode %v, want one that its owner may use", got)
	}
	if got, want := mode(filepath.Join(out, "new", "f")), mode(reference); got != want {
		t.Errorf("a new file has mode %v, want %v, as the umask leaves it", got, want)
	}
}
