package script

import (
	"context"
	"errors"
	"testing"
)

// A prompt whose record is written must reach the agent. What ends its query then is an interrupt,
// which leaves the queries of other programs alone.
func TestALineIsQueuedThoughItsContextIsDone(t *testing.T) {
	t.Parallel()
	p := &Process{input: make(chan []byte, 20)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range cap(p.input) {
		if err := p.queue(ctx, []byte("line")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.queue(ctx, []byte("one too many")); !errors.Is(err, context.Canceled) {
		t.Errorf("into a full queue: %v", err)
	}
	closed := &Process{input: make(chan []byte, 20), stop: make(chan struct{})}
	close(closed.stop)
	for range cap(closed.input) {
		if err := closed.queue(t.Context(), []byte("line")); !errors.Is(err, ErrClosed) {
			t.Fatalf("after the end: %v", err)
		}
	}
}
