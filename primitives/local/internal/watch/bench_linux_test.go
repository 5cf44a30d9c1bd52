package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// One operation is the time from a write to its report. The lower bound only reads the kernel's
// queue.
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

// measureLatency makes another process write, as a program in a sandbox does. Both measurements
// include waking that process.
func measureLatency(b *testing.B, dir string, wait func()) {
	f, err := os.Create(filepath.Join(dir, "file"))
	must(b, err)
	defer f.Close()
	wait() // the event of its creation
	cat := exec.CommandContext(b.Context(), "cat")
	cat.Stdout = f
	in, err := cat.StdinPipe()
	must(b, err)
	must(b, cat.Start())
	for b.Loop() {
		_, err := in.Write([]byte("x"))
		must(b, err)
		wait()
	}
	must(b, in.Close())
	must(b, cat.Wait())
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
