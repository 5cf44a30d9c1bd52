package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// headers returns a reader of an endless archive that repeats one header.
func headers(t *testing.T, h tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return &repeated{block: b.Bytes()}
}

type repeated struct {
	block []byte
	at    int
}

// Read implements io.Reader.
func (r *repeated) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m := copy(p[n:], r.block[r.at:])
		n, r.at = n+m, (r.at+m)%len(r.block)
	}
	return n, nil
}

// sparseFile returns an archive of one file, in GNU's old sparse format, that is a single hole.
func sparseFile(t *testing.T, size int64) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	block := b.Bytes()
	block[156] = tar.TypeGNUSparse
	number := block[483:495] // the real size, in base 256
	clear(number)
	number[0] = 0x80
	binary.BigEndian.PutUint64(number[4:], uint64(size))
	copy(block[148:156], "        ")
	sum := 0
	for _, c := range block[:512] {
		sum += int(c)
	}
	copy(block[148:156], []byte{'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7), '0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0, ' '})
	return io.MultiReader(&b, bytes.NewReader(make([]byte, 1024)))
}

func TestAnArchiveBeyondTheLimitIsRefusedBeforeItsContent(t *testing.T) {
	limit := archive.Limit{Bytes: 1 << 30, Entries: 1 << 10, Advice: "raise it"}
	for name, r := range map[string]io.Reader{
		"a large file":         headers(t, tar.Header{Name: "f", Size: 15 << 40, Mode: 0o644}),
		"many folders":         headers(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}),
		"many long names":      headers(t, tar.Header{Name: strings.Repeat("n", 1<<16), Format: tar.FormatPAX, Mode: 0o644}),
		"a sparse file of GNU": sparseFile(t, 15<<40),
	} {
		t.Run(name, func(t *testing.T) {
			in := archive.NewReader(r, limit)
			var err error
			for err == nil {
				_, err = in.Next()
			}
			if !errors.Is(err, primitives.ErrLimit) || !strings.HasSuffix(err.Error(), "raise it") {
				t.Errorf("error %v, want primitives.ErrLimit with the advice", err)
			}
		})
	}
}

func TestEntriesAreLimitedByDefault(t *testing.T) {
	add := archive.Limit{}.Meter()
	n := 0
	var err error
	for ; err == nil && n < 2<<20; n++ {
		err = add(&tar.Header{Name: "f"})
	}
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "more than 1048576 files") || n != 1<<20+1 {
		t.Errorf("entry %d: %v", n, err)
	}
}

func TestCopyIsTheArchiveItself(t *testing.T) {
	var whole bytes.Buffer
	w := tar.NewWriter(&whole)
	for _, name := range []string{"a", "b"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: 3, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte("abc"))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := archive.Copy(&got, bytes.NewReader(whole.Bytes()), archive.Limit{Bytes: 6}); err != nil || !bytes.Equal(got.Bytes(), whole.Bytes()) {
		t.Errorf("%d bytes of %d, %v", got.Len(), whole.Len(), err)
	}
	err := archive.Pipe(func(w io.Writer) error {
		return archive.Copy(w, bytes.NewReader(whole.Bytes()), archive.Limit{Bytes: 5})
	}, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("error %v, want primitives.ErrLimit at b", err)
	}
}

// A sandbox may mount the folder and change it during Pack.
func TestAFolderIsPackedWithoutWaiting(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a\xff"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := archive.Folder{Path: dir}
	var b bytes.Buffer
	if err := f.Pack(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(&b).Next(); err != nil || h.Name != "a\xff" {
		t.Errorf("%v, %v", h, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Pack(t.Context(), io.Discard); !errors.Is(err, primitives.ErrNotRegular) || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("a pipe: %v, want primitives.ErrNotRegular", err)
	}
	hole := filepath.Join(dir, "hole")
	if err := os.WriteFile(hole, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(hole, 12<<40); err != nil {
		t.Fatal(err)
	}
	if err := f.Pack(t.Context(), io.Discard); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("a hole: %v, want primitives.ErrLimit", err)
	}
	if err := os.WriteFile(hole, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough, written := errors.New("enough"), 0
	err := f.Pack(ctx, writerFunc(func(p []byte) (int, error) {
		if written += len(p); written > 1<<20 {
			cancel(enough)
		}
		return len(p), nil
	}))
	if !errors.Is(err, enough) {
		t.Errorf("cancelled: %v, want the cause", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
