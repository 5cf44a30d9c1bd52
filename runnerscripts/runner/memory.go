package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/frugal"
)

// A guest does nothing most of the time, and there may be hundreds on a machine. So it
// works on one processor while it has one thing to do, see frugal. And it collects no
// garbage before there is much of it, because the first collection costs more memory
// than most sandboxes ever make garbage: the runtime makes lists that stay. But when
// it has worked and come to rest it gives back to the kernel what it no longer needs.
const (
	gcPercent    = 50 // the first collection is at 2 MiB
	restInterval = 5 * time.Second
	trimAfter    = 64 // operations; what fewer leave is not worth the effort
	// maxProcessors is on how many a guest works at most. Each takes a thread, and there
	// must be some for system calls, see spareThreads.
	maxProcessors = spareThreads / 2
)

// lean keeps a guest small.
type lean struct {
	mu   sync.Mutex
	wide bool // it works on several processors
	busy bool // since rest has looked
	left int  // operations that made garbage
}

// newLean makes a guest small.
func newLean() *lean {
	debug.SetGCPercent(gcPercent)
	return &lean{}
}

// spread lets this program work on several processors.
func spread() { runtime.GOMAXPROCS(min(frugal.Processors, maxProcessors)) }

// work is the guest's callback Work, see guest.ServeConfig.
func (l *lean) work(much bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = true
	l.left++
	if !much {
		return
	}
	l.left = max(l.left, trimAfter)
	if !l.wide {
		l.wide = true
		spread()
	}
}

// stay looks now and then whether there is something to give back, until ctx is done.
func (l *lean) stay(ctx context.Context) {
	tick := time.NewTicker(restInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.rest()
		}
	}
}

// rest gives back what is not needed, unless the guest is busy.
func (l *lean) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy:
		l.busy = false
	case l.left >= trimAfter:
		l.left, l.wide = 0, false
		runtime.GOMAXPROCS(1)
		runtime.GC() // only the second time buffers that are kept for reuse go, too
		debug.FreeOSMemory()
	}
}
