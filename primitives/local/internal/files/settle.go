package files

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel gives a file that changes the time of its last clock tick, so two changes within one tick may leave the same
// revision. A file is settled when the tick of its last change is over: any later change gives it another revision.
const (
	longTick   = 10 * time.Millisecond // the longest of a kernel
	coarseTick = 2 * time.Second       // of file systems that keep whole seconds
)

func isSettled(st *unix.Stat_t) bool {
	age := lastTick().Sub(time.Unix(st.Ctim.Unix()))
	if st.Ctim.Nsec == 0 {
		return age > coarseTick
	}
	return age > 0
}

// settle reports whether a file is settled. It waits for that no longer than a tick, and updates the state of the file.
func settle(ctx context.Context, fd int, st *unix.Stat_t) (bool, error) {
	if isSettled(st) {
		return true, nil
	}
	tick := time.NewTimer(longTick)
	defer tick.Stop()
	select {
	case <-tick.C:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	err := unix.Fstat(fd, st)
	return isSettled(st), err
}
