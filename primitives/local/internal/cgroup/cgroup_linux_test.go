package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLocateFindsTheOwnGroup(t *testing.T) {
	const (
		unified  = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid   = "33 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		version1 = "33 31 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory,cpu\n"
		bound    = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
	)
	for _, tt := range []struct {
		name, mounts, own, want string
		found                   bool
		controller              string
	}{
		{"unified", unified, "0::/user.slice/a\n", "/sys/fs/cgroup/user.slice/a", true, ""},
		{"hybrid", hybrid, "2:cpu:/x\n0::/\n", "/sys/fs/cgroup/unified", true, ""},
		{"bound below the group", bound, "0::/docker/abc/sub\n", "/sys/fs/cgroup/sub", true, ""},
		{"bound somewhere else", bound, "0::/docker/other\n", "", false, ""},
		{"version 1 only", version1, "2:cpu,memory:/x\n", "", false, ""},
		{"not mounted", "", "0::/\n", "", false, ""},
		{"a controller", version1, "2:cpu,memory:/docker/abc\n0::/\n", "/sys/fs/cgroup/memory", true, "memory"},
		{"a controller that is not mounted", hybrid, "2:cpu:/x\n3:memory:/x\n0::/\n", "", false, "memory"},
		{"no such controller", unified, "0::/\n", "", false, "memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if dir, ok := locate(strings.NewReader(tt.mounts), tt.own, tt.controller); dir != tt.want || ok != tt.found {
				t.Errorf("%q, %v", dir, ok)
			}
		})
	}
}

func TestOOMCountIsReadFromTheEvents(t *testing.T) {
	if n, err := oomCount("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"); err != nil || n != 3 {
		t.Errorf("of version 1: %d, %v", n, err)
	}
	n, err := oomCount("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n")
	if err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := oomCount("low 0\n"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without the count: %v", err)
	}
}

// newGroup returns a group for the test. It returns false if the system has no control groups,
// after checking that the error says so.
func newGroup(t *testing.T) (*Group, bool) {
	t.Helper()
	parent, err := Parent()
	if err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("no control groups: %v", err)
		}
		return nil, false
	}
	dir := filepath.Join(parent, "agentenv-test-"+strconv.Itoa(os.Getpid()))
	g, err := Open(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		_ = Kill(dir)
		for range 20_000 {
			if err = Remove(dir); err == nil {
				return
			}
			<-time.After(time.Millisecond)
		}
		t.Error(err)
	})
	return g, true
}

func startIn(t *testing.T, l *Leaf) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: l.FD()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestALeafIsUsedAgainWhenItIsEmptyAndWasNotKilled(t *testing.T) {
	g, ok := newGroup(t)
	if !ok {
		return
	}
	acquire := func() *Leaf {
		t.Helper()
		l, err := g.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := acquire()
	g.Release(first)
	if again := acquire(); again != first {
		t.Error("an empty leaf is not used again")
	}
	startIn(t, first)
	if pids, err := Pids(g.Path()); err != nil || len(pids) != 1 {
		t.Errorf("pids %v, %v", pids, err)
	}
	g.Release(first)
	second := acquire()
	if second == first {
		t.Fatal("a leaf with a process in it is used again")
	}
	cmd := startIn(t, second)
	if err := second.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	g.Release(second)
	third := acquire()
	if third == second {
		t.Error("a leaf that was killed is used again")
	}
	g.Release(third)
}

func TestALeafThatIsGivenBackTooLateIsClosed(t *testing.T) {
	g, ok := newGroup(t)
	if !ok {
		return
	}
	l, err := g.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	g.Release(l)
	if _, err := l.dir.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("its folder: %v", err)
	}
	if _, err := os.Stat(l.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its group: %v", err)
	}
}

func TestWhatDoesNotExistHasNoProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if pids, err := Pids(dir); err != nil || len(pids) > 0 {
		t.Errorf("pids %v, %v", pids, err)
	}
	if err := errors.Join(Kill(dir), Remove(dir)); err != nil {
		t.Error(err)
	}
}
