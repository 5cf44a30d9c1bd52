package session

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// numbered returns a query that yields n events with payloads of the given size, and then the
// error end unless it is nil. made counts the events that were requested.
func numbered(n, size int, end error, made *int) func(context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(context.Context) iter.Seq2[runnerscripts.Event, error] {
		return func(yield func(runnerscripts.Event, error) bool) {
			for i := range n {
				*made++
				ev := runnerscripts.Event{Index: i + 1, Payload: json.RawMessage(strconv.Quote(strings.Repeat("x", size)))}
				if !yield(ev, nil) {
					return
				}
			}
			if end != nil {
				yield(runnerscripts.Event{}, end)
			}
		}
	}
}

func TestEventsThatAreReadyAreStoredTogether(t *testing.T) {
	failed := errors.New("failed")
	for name, end := range map[string]error{"ends": nil, "fails": failed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made, last, batches := 0, 0, 0
				var err error
				for events, e := range ready(t.Context(), numbered(1000, 10, end, &made)) {
					batches++
					for _, ev := range events {
						if ev.Index != last+1 {
							t.Fatalf("event %d after %d", ev.Index, last)
						}
						last = ev.Index
					}
					err = errors.Join(err, e)
					synctest.Wait() // storing takes long
				}
				if last != 1000 || batches > 1+1000/mostReady+2 || !errors.Is(err, end) {
					t.Errorf("%d events in %d batches, %v", last, batches, err)
				}
			})
		})
	}
}

func TestWhatWaitsForTheStoreIsBounded(t *testing.T) {
	for name, size := range map[string]int{"many": 10, "large": 100 << 10, "huge": 2 * mostReadyBytes} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made, stored := 0, 0
				for events, err := range ready(t.Context(), numbered(10_000, size, nil, &made)) {
					if err != nil {
						t.Fatal(err)
					}
					stored += len(events)
					synctest.Wait()
					waiting := made - stored
					if waiting > mostReady+1 || (waiting-1)*size > mostReadyBytes+size {
						t.Errorf("%d events wait", waiting)
					}
					if stored > 2*mostReady || size > 10 {
						break // the producer must end, too
					}
				}
			})
		})
	}
}

func TestAQueryWhoseEventsCannotBeStoredEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		query := func(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
			return func(yield func(runnerscripts.Event, error) bool) {
				yield(runnerscripts.Event{Index: 1}, nil)
				<-ctx.Done()
				ended = true
			}
		}
		for range ready(t.Context(), query) {
			break
		}
		if !ended {
			t.Error("it goes on")
		}
	})
}
