package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// BenchmarkPutBlobs stores the contents of 10,000 and 100,000 small files, of 90 bytes to 4 KiB of
// source text. The same run has what to compare it with: "git add" of the same files, and a plain
// write of all of their bytes to one file. Metrics: the bytes that are on the disk afterwards.
func BenchmarkPutBlobs(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		files := sources(b, n)
		b.Run(fmt.Sprintf("files=%d/first", n), func(b *testing.B) {
			for b.Loop() {
				s, dir := withSession(b)
				putSequence(b, s, "s", files)
				b.ReportMetric(float64(diskUsage(b, dir)), "disk-bytes")
			}
		})
		b.Run(fmt.Sprintf("files=%d/again", n), func(b *testing.B) {
			s, _ := withSession(b)
			putSequence(b, s, "s", files)
			for b.Loop() {
				putSequence(b, s, "s", files)
			}
		})
		b.Run(fmt.Sprintf("files=%d/delete", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s, dir := withSession(b)
				putSequence(b, s, "s", files)
				b.StartTimer()
				if err := s.Delete(b.Context(), "s"); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(diskUsage(b, dir)), "disk-bytes")
			}
		})
		b.Run(fmt.Sprintf("files=%d/git-add", n), func(b *testing.B) {
			tree := b.TempDir()
			for i, f := range files {
				name := filepath.Join(tree, fmt.Sprint(i/100), fmt.Sprint(i))
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(name, f, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				dir := b.TempDir()
				git(b.Context(), b, tree, "init", "--quiet", dir)
				git(b.Context(), b, tree, "--git-dir="+filepath.Join(dir, ".git"), "--work-tree=.", "add", "-A")
				b.ReportMetric(float64(diskUsage(b, dir)), "disk-bytes")
			}
		})
		b.Run(fmt.Sprintf("files=%d/one-file", n), func(b *testing.B) {
			for b.Loop() {
				dir := b.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "all"), bytes.Join(files, nil), 0o600); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(diskUsage(b, dir)), "disk-bytes")
			}
		})
	}
}

func git(ctx context.Context, b *testing.B, dir string, args ...string) {
	b.Helper()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func putSequence(b testing.TB, s *Store, id string, contents [][]byte) {
	b.Helper()
	if got, err := s.PutBlobs(b.Context(), id, sequence(contents)); err != nil || len(got) != len(contents) {
		b.Fatalf("%d digests, %v", len(got), err)
	}
}

// sequence yields a reader of each content.
func sequence(contents [][]byte) iter.Seq2[io.Reader, error] {
	return func(yield func(io.Reader, error) bool) {
		for _, c := range contents {
			if !yield(bytes.NewReader(c), nil) {
				return
			}
		}
	}
}

// sources returns n contents, pieces of the Go sources of this package with a line of their own.
func sources(b *testing.B, n int) [][]byte {
	b.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		b.Fatal(err)
	}
	var text []byte
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		text = append(text, data...)
	}
	random := rand.New(rand.NewPCG(1, 2))
	all := make([][]byte, n)
	for i := range all {
		size := 90 + random.IntN(4<<10-90)
		at := random.IntN(len(text) - size)
		all[i] = append(fmt.Appendf(nil, "// %d\n", i), text[at:at+size]...)
	}
	return all
}

// diskUsage returns the bytes that the files in a folder have on the disk.
func diskUsage(tb testing.TB, dir string) (size int64) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err == nil {
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return size
}

// BenchmarkBlob reads the contents of 10,000 small files, one by one.
func BenchmarkBlob(b *testing.B) {
	const n = 10_000
	s, _ := withSession(b)
	digests, err := s.PutBlobs(b.Context(), "s", sequence(sources(b, n)))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for _, d := range digests {
			r, err := s.Blob(b.Context(), "s", d)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				err = errors.Join(err, r.Close())
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/blob")
}
