package agenttest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// WaitForExit waits until a process, which need not be a child of the test, has ended.
func WaitForExit(t testing.TB, pid string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		status, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Errorf("the process %s still runs", pid)
			return
		}
	}
}

// WaitForGroup waits until a process group has ended. Orphaned processes remain visible until
// the system has reaped them.
func WaitForGroup(t testing.TB, id int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(-id, 0), syscall.ESRCH); <-tick.C {
		if time.Now().After(end) {
			t.Errorf("the process group %d is still there", id)
			return
		}
	}
}
