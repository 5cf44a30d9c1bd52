package local_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// packed makes an archive of entries; a file's content is its name.
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

// An archive from a sandbox writes nowhere else, also in several steps.
func TestUnpackStaysInTheFolder(t *testing.T) {
	dir := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	for name, entries := range map[string][]tar.Header{
		"a chain of links":        {dir("a"), dir("a/b"), link("a/b/s", "../.."), link("t", "a/b/s/../victim"), file("t")},
		"a chain, later made":     {link("t", "a/b/s/../../victim"), dir("a"), dir("a/b"), link("a/b/s", "../.."), file("t")},
		"a folder becomes a link": {dir("a"), dir("a/b"), link("t", "a/b/../../victim"), link("a/b", ".."), file("t")},
		"an absolute link":        {link("t", "/"), file("t/victim")},
		"a link above":            {link("t", ".."), file("t/victim")},
		"a file above":            {file("../victim")},
		"a hard link to above":    {{Typeflag: tar.TypeLink, Name: "t", Linkname: "../victim"}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			victim := filepath.Join(top, "victim")
			if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(top, "out")
			if err := local.Unpack(t.Context(), out, packed(t, entries...)); !errors.Is(err, primitives.ErrPathEscape) && name != "a folder becomes a link" {
				t.Errorf("error %v, want primitives.ErrPathEscape", err)
			}
			// What came before the error stays, and a later archive goes on with it.
			_ = local.Unpack(t.Context(), out, packed(t, file("t"), file("t/victim")))
			if content, err := os.ReadFile(victim); err != nil || string(content) != "mine" {
				t.Errorf("a file outside holds %q, %v", content, err)
			}
			names, err := os.ReadDir(top)
			if err != nil || len(names) != 2 {
				t.Errorf("beside the folder there are %v, %v", names, err)
			}
		})
	}
}

func TestUnpackLeavesModesToTheHost(t *testing.T) {
	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := local.Unpack(t.Context(), out, packed(t,
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
