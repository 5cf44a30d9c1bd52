package main

import (
	"runtime"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/frugal"
)

func TestAGuestWorksOnOneProcessorUntilThereIsMuchToDo(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := &memorySaver{}
	most := min(frugal.Processors, maxProcessors) // the machine may have more
	for i, step := range []struct {
		do   func()
		want int
	}{
		{func() { l.work(false) }, 1},
		{l.releaseMemory, 1},
		{func() { l.work(true) }, most},
		{func() { l.work(false) }, most},
		{l.releaseMemory, most}, // it was busy a moment ago
		{func() { l.work(true) }, most},
		{l.releaseMemory, most},
		{l.releaseMemory, 1},
		{l.releaseMemory, 1},
		{func() { l.work(true) }, most},
	} {
		if step.do(); runtime.GOMAXPROCS(0) != step.want {
			t.Fatalf("after step %d it works on %d processors, want %d", i, runtime.GOMAXPROCS(0), step.want)
		}
	}
}

func TestAGuestGivesBackMemoryWhenItHasWorkedAndRests(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := &memorySaver{}
	collected := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	before := collected()
	l.work(false)
	l.releaseMemory()
	l.releaseMemory()
	if collected() != before {
		t.Error("it collects garbage after a single operation")
	}
	for range trimAfter {
		l.work(false)
	}
	l.releaseMemory()
	if collected() != before {
		t.Error("it collects garbage while it is busy")
	}
	l.releaseMemory()
	if collected() == before {
		t.Error("at rest it does not collect garbage")
	}
	before = collected()
	l.releaseMemory()
	if collected() != before {
		t.Error("it collects garbage again, and has done nothing")
	}
}
