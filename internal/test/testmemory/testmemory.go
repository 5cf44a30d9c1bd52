// Package testmemory measures the peak memory of a test.
package testmemory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// Peak returns by how many bytes the heap of this program grows at most while f runs. It makes
// the garbage collector run often, so that garbage hardly counts. Nothing else may run at the
// same time.
func Peak(t testing.TB, f func()) int64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	runtime.GC()
	before := heap()
	done := make(chan struct{})
	most := make(chan int64)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		peak := before
		for {
			select {
			case <-tick.C:
				peak = max(peak, heap())
			case <-done:
				most <- max(peak, heap())
				return
			}
		}
	}()
	f()
	close(done)
	return <-most - before
}

// AtMost fails the test if the heap grows by more than limit bytes while f runs.
func AtMost(t testing.TB, limit int64, f func()) {
	t.Helper()
	peak := Peak(t, f)
	t.Logf("the heap grew by %d MiB", peak>>20)
	if peak > limit {
		t.Errorf("the heap grew by %d MiB, want at most %d", peak>>20, limit>>20)
	}
}

func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
