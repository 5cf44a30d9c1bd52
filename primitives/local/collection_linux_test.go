package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// collectors returns the collector processes of a program. A process that is being started has no
// arguments yet: collectors waits for those of children of the program.
func collectors(t *testing.T, host int) []int {
	t.Helper()
	var pids []int
	eventually(t, "the children of the program are started", func() bool {
		pids = nil
		procs, err := proctree.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			line, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
			switch {
			case bytes.HasPrefix(line, fmt.Appendf(nil, "agentenv-collector\x00%d.", host)):
				pids = append(pids, p.PID)
			case err == nil && len(line) == 0 && p.PPID == host && alive(p.PID):
				return false
			}
		}
		return true
	})
	return pids
}

// collected waits until the collector process of a killed owner has ended.
func (o *owner) collected(t *testing.T) {
	t.Helper()
	eventually(t, "the collector process has ended", func() bool { return len(collectors(t, o.cmd.Process.Pid)) == 0 })
}

// daemon is a script whose command ends while its background process still runs.
const daemon = "(setsid sh -c 'trap \"\" TERM HUP; sleep 600' </dev/null >/dev/null 2>&1 &)"

func emptied(t *testing.T, root string) func() bool {
	return func() bool {
		left, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	}
}

func TestNothingOutlivesAKilledProgram(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		env := []string{`OWN_CONFIG={"Grace": 1000000000}`}
		o := startOwnerWith(t, sweeping, env, root, "exec sleep 600", daemon+"; sleep 600", daemon, "durable sleep 600")
		if got := collectors(t, o.cmd.Process.Pid); len(got) != 1 {
			t.Errorf("collector processes: %v, want one", got)
		}
		o.kill()
		eventually(t, "the folder is gone", emptied(t, root))
		if left := marked(t, o.sandbox); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		o.collected(t)
	})
}

// Orphans are collected without a runner, too, and after the program has exited by itself.
func TestNothingOutlivesAProgramThatLeavesItsSandbox(t *testing.T) {
	root := t.TempDir()
	o := startOwnerWith(t, false, []string{`OWN_CONFIG={"runner": "", "Grace": 1000000000}`}, root, daemon)
	if err := o.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
	eventually(t, "the folder is gone", emptied(t, root))
	if left := marked(t, o.sandbox); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestAKeptSandboxOutlivesItsProgramWithItsDurableCommands(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		env := []string{`OWN_CONFIG={"Keep": true, "Grace": 1000000000}`}
		o := startOwnerWith(t, sweeping, env, root, "exec sleep 600", daemon, "durable echo on; sleep 600")
		o.kill()
		o.collected(t)
		for pid, environ := range marked(t, o.sandbox) {
			if !strings.Contains(environ, o.commands[2]) {
				t.Errorf("process %d is left: %q", pid, environ)
			}
		}
		s := attach(t, root, o.sandbox)
		p, err := s.Reattach(t.Context(), o.commands[2], primitives.Offset{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if line := readLine(t, p.Stdout()); line != "on" {
			t.Errorf("durable command printed %q", line)
		}
		if err := p.Signal(t.Context(), primitives.SIGTERM); err != nil {
			t.Errorf("the durable command: %v", err)
		}
	})
}

func TestASandboxStaysWhileAnotherProgramIsAttached(t *testing.T) {
	root := t.TempDir()
	o := startOwnerWith(t, false, []string{`OWN_CONFIG={"Grace": 1000000000}`}, root, "exec sleep 600")
	s := attach(t, root, o.sandbox)
	p := start(t, s, shell("sleep 600"))
	o.kill()
	o.collected(t)
	if _, err := s.Stat(t.Context(), "."); err != nil {
		t.Error(err)
	}
	if err := p.Signal(t.Context(), primitives.SIGTERM); err != nil {
		t.Errorf("the command of the other program: %v", err)
	}
}

// The last attached program need not end: closing its handle is enough.
func TestASandboxOfADeadOwnerEndsWhenNobodyIsAttachedAnyMore(t *testing.T) {
	root := t.TempDir()
	o := startOwnerWith(t, false, []string{`OWN_CONFIG={"Grace": 1000000000}`}, root, "exec sleep 600")
	s := attach(t, root, o.sandbox)
	o.kill()
	o.collected(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the folder is gone", emptied(t, root))
}

func lifeOf(root, id string) string {
	return filepath.Join(primitives.PathsIn(filepath.Join(root, id)).App, "life")
}

// alone makes a sandbox look as if no client had been attached for this time.
func alone(t *testing.T, root, id string, since time.Duration) {
	t.Helper()
	then := time.Now().Add(-since)
	if err := os.Chtimes(lifeOf(root, id), then, then); err != nil {
		t.Fatal(err)
	}
}

// GC counts the grace period itself if no collector process does.
func TestGCGivesAnOrphanItsGrace(t *testing.T) {
	cfg := durableConfig(t)
	root := local.Config{Root: cfg.Root}
	cfg.Grace = 3600 * time.Second
	s := newSandbox(t, cfg)
	for _, pid := range collectors(t, os.Getpid()) {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	}
	start(t, s, durable("sleep 600"))
	orphan(t, s.Paths().Session)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	took := func(when, want string, opts primitives.GCOptions) {
		t.Helper()
		if got := gc(t, root, opts); got != want {
			t.Errorf("%s GC took %q, want %q", when, got, want)
		}
	}
	since := func(when string) time.Time {
		t.Helper()
		list, err := local.Provider{Root: root.Root}.List(t.Context())
		if err != nil || len(list) != 1 || !list[0].Orphan {
			t.Fatalf("%s it is listed as %+v, %v", when, list, err)
		}
		return list[0].OrphanSince
	}
	if at := since("before"); !at.IsZero() {
		t.Errorf("nobody has seen it alone, but it is so since %v", at)
	}
	took("at first sight", "", primitives.GCOptions{})
	if at := since("at first sight"); at.IsZero() {
		t.Error("it is not known since when it is an orphan")
	}
	alone(t, root.Root, id, 59*time.Minute)
	took("within its grace", "", primitives.GCOptions{})
	again := attach(t, root.Root, id)
	took("while a program is attached", "", primitives.GCOptions{NoGrace: true})
	if at := since("while a program is attached"); !at.IsZero() {
		t.Errorf("a program is attached, but it is alone since %v", at)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	took("after that", "", primitives.GCOptions{})
	if life, err := os.Stat(lifeOf(root.Root, id)); err != nil || time.Since(life.ModTime()) > 30*time.Minute {
		t.Errorf("its grace has not begun anew: %v, %v", life.ModTime(), err)
	}
	alone(t, root.Root, id, -time.Hour)
	took("with a clock that was set back", "", primitives.GCOptions{})
	alone(t, root.Root, id, 61*time.Minute)
	took("after its grace", id, primitives.GCOptions{})
}

func TestTheNextProgramCollectsTheOrphansOfAKilledCollector(t *testing.T) {
	bothWays(t, func(t *testing.T, sweeping bool) {
		root := t.TempDir()
		env := []string{`OWN_CONFIG={"Grace": 1000000000}`}
		o := startOwnerWith(t, sweeping, env, root, "exec sleep 600", daemon, "durable sleep 600")
		for _, pid := range collectors(t, o.cmd.Process.Pid) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		o.kill()
		half := filepath.Join(root, "abcdefghabcdefgh")
		if err := os.Mkdir(half, 0o700); err != nil {
			t.Fatal(err)
		}
		next := startOwnerWith(t, sweeping, env, root)
		eventually(t, "only the sandbox of the next program is left", func() bool {
			left, err := os.ReadDir(root)
			return err == nil && len(left) == 1 && left[0].Name() == next.sandbox
		})
		if left := marked(t, o.sandbox); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		next.kill()
		eventually(t, "the next program's is gone, too", emptied(t, root))
		next.collected(t)
	})
}

func TestACollectorProcessThatWasKilledIsReplaced(t *testing.T) {
	root := t.TempDir()
	first := newSandbox(t, local.Config{Root: root})
	mine := collectors(t, os.Getpid())
	if len(mine) != 1 {
		t.Fatalf("collector processes: %v, want one", mine)
	}
	if err := unix.Kill(mine[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return !alive(mine[0]) })
	eventually(t, "there is another one", func() bool {
		newSandbox(t, local.Config{Root: root}) // the kernel closes files a moment later
		now := collectors(t, os.Getpid())
		return len(now) == 1 && now[0] != mine[0]
	})
	if _, err := os.Stat("/proc/" + strconv.Itoa(mine[0])); err == nil {
		t.Error("the killed one was not reaped")
	}
	if _, err := first.Stat(t.Context(), "."); err != nil {
		t.Error(err)
	}
}

// The environment of a program holds keys that its commands do not get.
func TestACollectorProcessKnowsNoSecrets(t *testing.T) {
	root := t.TempDir()
	o := startOwnerWith(t, false, []string{"FAKE_API_KEY=s3cret"}, root)
	var open []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it has %q open", open)
		}
	})
	for _, pid := range collectors(t, o.cmd.Process.Pid) {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || bytes.Contains(environ, []byte("s3cret")) {
			t.Errorf("environment %q, %v", environ, err)
		}
		// What it has inherited stays open. What it reads itself, as when it starts, does not.
		eventually(t, "it has nothing of the program open", func() bool {
			open = strange(t, pid)
			return len(open) == 0
		})
	}
}

// strange returns the open files of a collector process that it does not need.
func strange(t *testing.T, pid int) []string {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	open, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range open {
		name, err := os.Readlink(filepath.Join(dir, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed meanwhile
		}
		kind, _, _ := strings.Cut(name, ":")
		if name != os.DevNull && kind != "socket" && kind != "anon_inode" && !strings.HasPrefix(name, "/sys/fs/cgroup/") {
			names = append(names, name)
		}
	}
	return names
}

func TestAFileThatAKilledProgramWasWritingIsCollected(t *testing.T) {
	root := t.TempDir()
	env := []string{`OWN_CONFIG={"Keep": true}`, "OWN_WRITE=1"}
	o := startOwnerWith(t, false, env, root)
	s := attach(t, root, o.sandbox)
	list := func() []os.DirEntry {
		entries, err := os.ReadDir(s.Paths().Workspace)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	if got := list(); len(got) != 1 {
		t.Fatalf("while it is written the folder has %v, want one temporary file", got)
	}
	if infos, err := s.List(t.Context(), ".", primitives.ListOptions{}); err != nil || len(infos) > 0 {
		t.Errorf("List shows %v, %v", infos, err)
	}
	o.kill()
	o.collected(t)
	if got := list(); len(got) > 0 {
		t.Errorf("%v is left", got)
	}
}

func TestACollectorProcessRemovesWhatDeadProgramsWroteOnly(t *testing.T) {
	root := t.TempDir()
	open := func(cfg local.Config) *local.Sandbox {
		t.Helper()
		cfg.Root = root
		s, err := local.New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, err := s.Terminate(context.WithoutCancel(t.Context()))
			if err := errors.Join(err, s.Close()); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	orphan, alive := open(local.Config{Keep: true}), open(local.Config{})
	ofDead, err := local.Orphan(orphan)
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(orphan.Paths().Workspace, ofDead)
	living := []string{filepath.Join(orphan.Paths().Workspace, local.OwnTemp()), filepath.Join(alive.Paths().Workspace, local.OwnTemp())}
	for _, name := range append(living, dead) {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	local.CollectOrphans(root)
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a dead owner was writing: %v", err)
	}
	for _, name := range living {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("what a living program writes: %v", err)
		}
	}
}
