package files

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// One operation is a batch of 1000 files of 4 KiB in a fresh directory.
const (
	batchFiles = 1000
	batchBytes = 4096
)

// BenchmarkBatchRaw is the lower bound: only the four system calls of an atomic write.
func BenchmarkBatchRaw(b *testing.B) {
	dir := b.TempDir()
	content := make([]byte, batchBytes)
	for i := 0; b.Loop(); i++ {
		sub := fmt.Sprintf("%s/%d", dir, i)
		must(b, os.Mkdir(sub, 0o755))
		d, err := unix.Open(sub, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(b, err)
		for n := range batchFiles {
			temp, name := fmt.Sprintf(".tmp%05d", n), fmt.Sprintf("f%05d", n)
			fd, err := unix.Openat(d, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			must(b, err)
			_, err = unix.Write(fd, content)
			must(b, err)
			must(b, unix.Close(fd))
			must(b, unix.Renameat(d, temp, d, name))
		}
		must(b, unix.Close(d))
	}
}

func BenchmarkBatch(b *testing.B) {
	f := benchFS(b)
	content := make([]byte, batchBytes)
	files := make([]primitives.File, batchFiles)
	for i := 0; b.Loop(); i++ {
		for n := range files {
			files[n] = primitives.File{Path: fmt.Sprintf("%d/f%05d", i, n), Content: content}
		}
		errs, err := f.WriteFiles(b.Context(), files)
		must(b, err)
		for _, err := range errs {
			must(b, err)
		}
	}
}

func benchFS(b *testing.B) *FS {
	paths := primitives.PathsIn(b.TempDir())
	for _, dir := range paths.All() {
		must(b, os.MkdirAll(dir, 0o755))
	}
	f, err := New(Config{Backend: "local", Paths: paths, UID: -1, GID: -1})
	must(b, err)
	b.Cleanup(func() { must(b, f.Close()) })
	return f
}

// One operation lists 10 000 files.
func BenchmarkListRaw(b *testing.B) {
	f := benchFS(b)
	fill(b, f)
	for b.Loop() {
		list, err := os.ReadDir(f.names[0])
		must(b, err)
		for _, e := range list {
			_, err := e.Info()
			must(b, err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	f := benchFS(b)
	fill(b, f)
	for b.Loop() {
		_, err := f.List(b.Context(), ".", primitives.ListOptions{})
		must(b, err)
	}
}

func fill(b *testing.B, f *FS) {
	for n := range 10_000 {
		must(b, os.WriteFile(fmt.Sprintf("%s/f%05d", f.names[0], n), nil, 0o644))
	}
}

// One operation opens, reads and closes a file of 1 KiB three folders down.
func BenchmarkReadRaw(b *testing.B) {
	f := benchFS(b)
	put(b, f.names[0]+"/a/b/c/f", string(make([]byte, 1024)))
	for b.Loop() {
		_, err := os.ReadFile(f.names[0] + "/a/b/c/f")
		must(b, err)
	}
}

func BenchmarkRead(b *testing.B) {
	f := benchFS(b)
	put(b, f.names[0]+"/a/b/c/f", string(make([]byte, 1024)))
	for b.Loop() {
		_, err := primitives.ReadFile(b.Context(), f, "a/b/c/f", 0)
		must(b, err)
	}
}
