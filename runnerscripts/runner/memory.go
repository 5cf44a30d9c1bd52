package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A guest does nothing most of the time, and there may be hundreds on a machine.
// So it collects garbage early, and when it has used memory and come to rest it
// gives back to the kernel what it no longer needs.
const (
	gcPercent    = 25
	trimInterval = 5 * time.Second
	trimAbove    = 256 << 10 // bytes allocated; less is not worth the effort
)

// stayLean does that until ctx is done.
func stayLean(ctx context.Context) {
	debug.SetGCPercent(gcPercent)
	tick := time.NewTicker(trimInterval)
	defer tick.Stop()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for trimmed := uint64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if metrics.Read(allocated); allocated[0].Value.Uint64()-trimmed > trimAbove {
			runtime.GC() // only the second time buffers that are kept for reuse go, too
			debug.FreeOSMemory()
			trimmed = allocated[0].Value.Uint64()
		}
	}
}
