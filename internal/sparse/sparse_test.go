package sparse_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/sparse"
)

func newFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestContentStaysTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var want []byte
		f := newFile(t)
		w := sparse.NewWriter(f)
		for range random.IntN(8) {
			piece := make([]byte, random.IntN(20000))
			for at := 0; random.IntN(3) > 0 && at < len(piece); at += 1 + random.IntN(9000) {
				piece[at] = 1
			}
			want = append(want, piece...)
			if n, err := w.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(want), err)
		}
	}
}

func TestZerosTakeNoDisk(t *testing.T) {
	f := newFile(t)
	w := sparse.NewWriter(f)
	zeros := make([]byte, 1<<20)
	for i := range 64 {
		if i == 32 {
			zeros[5] = 1
		}
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
		zeros[5] = 0
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil || st.Size != 64<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes take %d of disk, %v", st.Size, st.Blocks*512, err)
	}
}
