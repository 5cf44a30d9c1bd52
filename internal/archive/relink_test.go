package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestOnlyLinksOfAnArchiveChange(t *testing.T) {
	long := "/a/ws/" + strings.Repeat("long/", 40)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range []*tar.Header{
		{Name: "file", Typeflag: tar.TypeReg, Mode: 0o600, Size: 5},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "file"},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: long},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, "/a/ws"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var copied bytes.Buffer
	if err := archive.Relink(&copied, bytes.NewReader(packed.Bytes()), "/a/ws", "/w", archive.Limit{}); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(&copied)
	for _, want := range []string{"file  /a/ws", "hard file ", "link " + strings.Replace(long, "/a/ws", "/w", 1) + " "} {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if got := h.Name + " " + h.Linkname + " " + string(content); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if err := archive.Relink(io.Discard, bytes.NewReader(packed.Bytes()), "/a/ws", "/w", archive.Limit{Entries: 1}); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("beyond the limit: %v", err)
	}
}
