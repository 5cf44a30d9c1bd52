package frugal

import (
	"runtime"
	"testing"
)

func TestAProgramStartsOnOneProcessor(t *testing.T) {
	if now := runtime.GOMAXPROCS(0); now != 1 || Processors < now {
		t.Errorf("it runs on %d processors and would have started on %d", now, Processors)
	}
}
