package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// holey writes a file of this size with a block of data at each of the offsets.
func holey(t *testing.T, name string, size int64, data ...int64) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range data {
		if _, err := f.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, 4096), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(size), f.Close(), os.Chtimes(name, time.Time{}, time.Unix(1700000000, 123456789))); err != nil {
		t.Fatal(err)
	}
}

func TestHolesAreNotInTheArchive(t *testing.T) {
	const mib = 1 << 20
	dir, files := t.TempDir(), map[string][]int64{
		"all": nil, "begin": {0}, "middle": {5 * mib}, "end": {16*mib - 4096}, "odd\xff": {70000}, strings.Repeat("long", 60): {4096, mib, 2 * mib},
	}
	for name, data := range files {
		holey(t, filepath.Join(dir, name), 16*mib, data...)
	}
	holey(t, filepath.Join(dir, "small"), 12345, 8192)
	holey(t, filepath.Join(dir, "empty"), 0)
	if err := os.WriteFile(filepath.Join(dir, "zeros"), make([]byte, mib), 0o600); err != nil { // these are data
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := (archive.Folder{Path: dir}).Pack(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if b.Len() > mib+128<<10 {
		t.Errorf("the archive has %d bytes", b.Len())
	}
	in, unpacked := archive.NewReader(bytes.NewReader(b.Bytes()), archive.Limit{Bytes: int64(len(files)*16*mib + mib + 12345)}), t.TempDir()
	for range len(files) + 3 {
		h, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		want, werr := os.ReadFile(filepath.Join(dir, h.Name))
		if err != nil || werr != nil || !bytes.Equal(got, want) || h.Size != int64(len(want)) {
			t.Errorf("%q: %d bytes of %d, %v, %v", h.Name, len(got), len(want), err, werr)
		}
		if h.Name != "zeros" && !h.ModTime.Equal(time.Unix(1700000000, 123456789)) {
			t.Errorf("%q: the time %v", h.Name, h.ModTime)
		}
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last entry: %v", err)
	}
	for _, args := range [][]string{{"tar", "-x", "-C", unpacked}, {"diff", "-r", dir, unpacked}} { // it is the format of GNU tar
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Stdin = bytes.NewReader(b.Bytes())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// Of many holes the small ones and the last ones are packed as zeros: tar.Reader refuses a list of more than 1 MiB.
func TestAFileOfManyHolesIsPacked(t *testing.T) {
	const blocks, listed = 1200, 1024
	for what, c := range map[string]struct{ gap, size, atLeast, most int64 }{
		"large": {72 << 10, blocks * 72 << 10, listed*4096 + (blocks-listed)*72<<10, listed*4096 + (blocks-listed)*72<<10},
		"small": {8 << 10, 16 << 20, (blocks - 1) * 8 << 10, blocks * 8 << 10},
	} {
		dir, data := t.TempDir(), make([]int64, 0, blocks)
		for i := range int64(blocks) {
			data = append(data, i*c.gap)
		}
		name := filepath.Join(dir, "f")
		holey(t, name, c.size, data...)
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := (archive.Folder{Path: dir}).Pack(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if n, more := int64(b.Len()), int64(256<<10); n < c.atLeast || n > c.most+more {
			t.Errorf("%s: the archive has %d bytes, want %d to %d", what, n, c.atLeast, c.most+more)
		}
		in := tar.NewReader(&b)
		_, err = in.Next()
		got, rerr := io.ReadAll(in)
		if err != nil || rerr != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v, %v", what, len(got), len(want), err, rerr)
		}
	}
}

func TestASparseFileThatBecomesShorterIsRefused(t *testing.T) {
	for what, data := range map[string][]int64{"a hole at the end": {0}, "data at the end": {1<<20 - 4096}} {
		dir := t.TempDir()
		name := filepath.Join(dir, "f")
		holey(t, name, 1<<20, data...)
		err := (archive.Folder{Path: dir}).Pack(t.Context(), writerFunc(func(p []byte) (int, error) {
			return len(p), os.Truncate(name, 8192)
		}))
		if !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "changed while it was copied") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// paxSparse returns an archive whose file is said to have these parts.
func paxSparse(t *testing.T, size, parts string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "f", Size: 512, PAXRecords: map[string]string{"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.realsize": size}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(append([]byte(parts), make([]byte, 512-len(parts))...)); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(bytes.ReplaceAll(b.Bytes(), []byte("XXX."), []byte("GNU.")))
}

func TestWrongPartsOfASparseFileAreRefused(t *testing.T) {
	const exbibyte = "1152921504606846976"
	for what, c := range map[string]struct {
		size, parts string
		want        error
	}{
		"an exbibyte":    {exbibyte, "0\n", primitives.ErrLimit},
		"overlapping":    {"4096", "2\n0\n10\n5\n10\n", tar.ErrHeader},
		"beyond the end": {"4096", "1\n4096\n1\n", tar.ErrHeader},
		"a negative one": {"4096", "1\n-1\n1\n", tar.ErrHeader},
		"an overflow":    {"4096", "1\n1\n9223372036854775807\n", tar.ErrHeader},
		"more than are":  {"4096", "9223372036854775807\n", tar.ErrHeader},
		"no size":        {"-1", "0\n", tar.ErrHeader},
	} {
		if _, err := archive.NewReader(paxSparse(t, c.size, c.parts), archive.Limit{}).Next(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	in := archive.NewReader(paxSparse(t, exbibyte, "0\n"), archive.Limit{Bytes: -1})
	if h, err := in.Next(); err != nil || h.Size != 1<<60 {
		t.Errorf("without a limit: %+v, %v", h, err)
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) { // the hole is skipped, not read
		t.Errorf("after it: %v", err)
	}
}
