package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// One operation is the time from a write to its report. The floor reads the
// kernel's queue and does nothing else.
func BenchmarkLatencyRaw(b *testing.B) {
	dir := b.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(b, err)
	queue := os.NewFile(uintptr(fd), "inotify")
	defer queue.Close()
	_, err = unix.InotifyAddWatch(fd, dir, watchMask)
	must(b, err)
	buf := make([]byte, readSize)
	measureLatency(b, dir, func() {
		_, err := queue.Read(buf)
		must(b, err)
	})
}

func BenchmarkLatency(b *testing.B) {
	dir := b.TempDir()
	w := begin(b, dir, primitives.WatchOptions{})
	measureLatency(b, dir, func() {
		_, err, ok := w.next()
		if !ok || err != nil {
			b.Error(err)
		}
	})
}

// measureLatency writes in one goroutine and waits for the report in another,
// as a program in a sandbox and its watcher do.
func measureLatency(b *testing.B, dir string, wait func()) {
	f, err := os.Create(filepath.Join(dir, "file"))
	must(b, err)
	defer f.Close()
	wait() // its creation
	write, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		for range write {
			_, _ = f.WriteAt([]byte("x"), 0)
		}
	}()
	for b.Loop() {
		write <- struct{}{}
		wait()
	}
	close(write)
	<-written
}

// One operation watches a tree of 10 000 directories with a file in each.
func BenchmarkTreeRaw(b *testing.B) {
	dir := tree(b)
	for b.Loop() {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		must(b, err)
		must(b, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_, err = unix.InotifyAddWatch(fd, path, watchMask)
			}
			return err
		}))
		b.StopTimer()
		must(b, unix.Close(fd))
		b.StartTimer()
	}
}

func BenchmarkTree(b *testing.B) {
	dir := tree(b)
	for b.Loop() {
		w, err := start(b.Context(), config(dir, primitives.WatchOptions{}), newSource)
		must(b, err)
		b.StopTimer()
		close(w.stop)
		<-w.ended
		b.StartTimer()
	}
}

func tree(b *testing.B) string {
	dir := b.TempDir()
	for i := range 100 {
		for j := range 100 {
			put(b, fmt.Sprintf("%s/%02d/%02d/file", dir, i, j), "")
		}
	}
	return dir
}
