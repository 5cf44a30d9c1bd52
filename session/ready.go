package session

import (
	"context"
	"iter"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Bounds of the events that wait for the store. Up to these bounds the query continues; at them
// it blocks.
const (
	mostReady      = 256     // events
	mostReadyBytes = 1 << 20 // of payloads, or one larger payload
)

// ready yields the events of a query in batches: each has the events that arrived while the
// previous batch was stored. Storing many events costs hardly more than storing one. An error
// comes with the events before it, and ends the sequence.
func ready(ctx context.Context, query func(context.Context) iter.Seq2[runnerscripts.Event, error]) iter.Seq2[[]runnerscripts.Event, error] {
	type item struct {
		event  runnerscripts.Event
		err    error
		weight int64
	}
	return func(yield func([]runnerscripts.Event, error) bool) {
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// The last events of a query arrive after its context is done, so sending them must not
		// depend on it.
		left, leave := context.WithCancel(context.WithoutCancel(ctx))
		defer leave()
		items := make(chan item, mostReady)
		room := semaphore.NewWeighted(mostReadyBytes)
		wg.Go(func() {
			defer close(items)
			for ev, err := range query(ctx) {
				next := item{ev, err, min(int64(len(ev.Payload)), mostReadyBytes)}
				if room.Acquire(left, next.weight) != nil {
					return
				}
				select {
				case items <- next:
				case <-left.Done():
					return
				}
			}
		})
		for next := range items {
			var events []runnerscripts.Event
			weight := int64(0)
			for more := true; more; {
				weight += next.weight
				if next.err != nil {
					break
				}
				events = append(events, next.event)
				select {
				case then, ok := <-items:
					if more = ok; ok {
						next = then
					}
				default:
					more = false
				}
			}
			if !yield(events, next.err) || next.err != nil {
				return
			}
			room.Release(weight)
		}
	}
}
