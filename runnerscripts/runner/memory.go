package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/frugal"
)

// A guest is idle most of the time, and a machine may have hundreds of guests. So a guest uses one
// processor while it does one thing at a time; see package frugal. It collects no garbage before
// there is much: the first collection makes the runtime allocate lists that stay, which takes more
// memory than most sandboxes ever produce as garbage. A guest that becomes idle after work returns
// unused memory to the kernel.
const (
	gcPercent    = 50 // the first collection is at 2 MiB
	restInterval = 5 * time.Second
	trimAfter    = 64 // operations; fewer leave too little garbage
	// maxProcessors is how many processors a guest uses at most. Each takes a thread, and some
	// threads must remain for system calls; see spareThreads.
	maxProcessors = spareThreads / 2
)

// memorySaver keeps the memory of a guest small.
type memorySaver struct {
	mu   sync.Mutex
	wide bool // uses several processors
	busy bool // has worked since the last releaseMemory
	left int  // operations since the last collection
}

// newMemorySaver sets the garbage collector of this program for a guest.
func newMemorySaver() *memorySaver {
	debug.SetGCPercent(gcPercent)
	return &memorySaver{}
}

// spread lets this program work on several processors.
func spread() { runtime.GOMAXPROCS(min(frugal.Processors, maxProcessors)) }

// work is the guest's callback Work, see guest.ServeConfig.
func (l *memorySaver) work(much bool) {
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

// run calls releaseMemory regularly until ctx is done.
func (l *memorySaver) run(ctx context.Context) {
	tick := time.NewTicker(restInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.releaseMemory()
		}
	}
}

// releaseMemory returns unneeded memory to the kernel and processors to the machine, unless the guest is
// busy.
func (l *memorySaver) releaseMemory() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.busy:
		l.busy = false
	case l.left >= trimAfter:
		l.left, l.wide = 0, false
		runtime.GOMAXPROCS(1)
		runtime.GC() // FreeOSMemory collects again; only the second collection frees pooled buffers
		debug.FreeOSMemory()
	}
}
