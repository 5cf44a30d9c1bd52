package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func openFiles(t testing.TB) int {
	t.Helper()
	// The runtime opens files of its own with the first pipe.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// ownStatus reads a number from /proc/self/status.
func ownStatus(t testing.TB, key string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the status", key)
	return 0
}

func TestRunningCommandsTakeNoThreadsAndGiveTheirFilesBack(t *testing.T) {
	const sessions = 100
	root := t.TempDir()
	endSandbox(t, newSandbox(t, local.Config{})) // the first one starts the collector process
	before, threads := openFiles(t), ownStatus(t, "Threads")
	var all []*local.Sandbox
	for range sessions {
		s, err := local.New(t.Context(), local.Config{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
		p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"/bin/cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Stdin().Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		readLine(t, p.Stdout())
	}
	if now := ownStatus(t, "Threads"); now > threads+sessions/4 {
		t.Errorf("%d commands took %d threads", sessions, now-threads)
	}
	var ends sync.WaitGroup
	for _, s := range all {
		ends.Go(func() {
			if _, err := s.Terminate(t.Context()); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	ends.Wait()
	if now := openFiles(t); now != before {
		t.Errorf("%d files are open, %d before", now, before)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCommandsRunAsTheUserOfTheConfiguration(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := local.New(t.Context(), local.Config{Root: t.TempDir(), User: "root"}); err == nil {
			t.Fatal("another user without being root")
		}
		return
	}
	root := t.TempDir()
	if _, err := local.New(t.Context(), local.Config{Root: root, User: "nobody"}); !errors.Is(err, primitives.ErrWorkingDir) {
		t.Errorf("below a folder that the user may not enter: %v", err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, dir := range []string{root, filepath.Dir(root)} { // what TempDir has made
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	s := newSandbox(t, local.Config{Root: root, User: "nobody"})
	res := run(t, s, shell("id -un; echo new > file; stat -c %U file; stat -c %U $HOME"))
	if string(res.Stdout) != "nobody\nnobody\nnobody\n" {
		t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
	}
	if err := s.WriteFile(t.Context(), "written", strings.NewReader("x"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if res := run(t, s, shell("stat -c %U written; echo more >> written")); string(res.Stdout) != "nobody\n" || !res.Status.Success() {
		t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
	}
}

func TestStdinOfACommandThatLeftAChildBehindIsAnError(t *testing.T) {
	s := newSandbox(t, local.Config{})
	cmd := shell("sleep 600 <&0 >/dev/null 2>&1 & exit 0")
	cmd.Stdin = true
	p := start(t, s, cmd)
	wait(t, p)
	// More than a pipe holds: without an error the write would hang.
	if n, err := p.Stdin().Write(make([]byte, 1<<20)); err == nil {
		t.Errorf("%d bytes were taken", n)
	}
}

// BenchmarkSessions makes 1000 sandboxes, each with a running command, waits until every command
// has answered, and ends the sandboxes.
func BenchmarkSessions(b *testing.B) {
	const sessions = 1000
	for b.Loop() {
		root := b.TempDir()
		rss, started := ownStatus(b, "VmRSS"), time.Now()
		all := make([]*local.Sandbox, sessions)
		procs := make([]primitives.Process, sessions)
		for i := range all {
			s, err := local.New(b.Context(), local.Config{Root: root})
			if err != nil {
				b.Fatal(err)
			}
			all[i] = s
			if procs[i], err = s.Exec(b.Context(), primitives.Command{Args: []string{"/bin/cat"}, Stdin: true}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(started).Milliseconds()), "start-ms")
		b.ReportMetric(float64(ownStatus(b, "Threads")), "threads")
		b.ReportMetric(float64(ownStatus(b, "VmRSS")-rss)/1024, "rss-MiB")
		started = time.Now()
		for _, p := range procs {
			if _, err := p.Stdin().Write([]byte("x\n")); err != nil {
				b.Fatal(err)
			}
		}
		for _, p := range procs {
			readLine(b, p.Stdout())
		}
		b.ReportMetric(float64(time.Since(started).Milliseconds()), "reply-ms")
		started = time.Now()
		var ends sync.WaitGroup
		for _, s := range all {
			ends.Go(func() {
				if _, err := s.Terminate(b.Context()); err != nil {
					b.Error(err)
				}
				_ = s.Close()
			})
		}
		ends.Wait()
		b.ReportMetric(float64(time.Since(started).Milliseconds()), "stop-ms")
	}
}
