package agenttest

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

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
