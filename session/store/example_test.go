package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// A store does not number events: their numbers must continue the log, so that two programs
// cannot write to one session.
func ExampleStore() {
	ctx := context.Background()
	var s store.Store = store.NewMemory()
	if err := s.Create(ctx, store.Record{ID: "a"}); err != nil {
		log.Fatal(err)
	}
	first := runnerscripts.Event{Seq: 1, Type: runnerscripts.TypeSessionIdle}
	if err := s.Append(ctx, "a", first); err != nil {
		log.Fatal(err)
	}
	err := s.Append(ctx, "a", first)
	fmt.Println(errors.Is(err, store.ErrConflict))
	for ev, err := range s.Events(ctx, "a", 1) {
		fmt.Println(ev.Seq, ev.Type, err)
	}
	// Output:
	// true
	// 1 session_idle <nil>
}

// A stream passes the events to the program and stores none.
func ExampleNewStream() {
	ctx := context.Background()
	s := store.NewStream(func(ev runnerscripts.Event) error {
		fmt.Println(ev.Seq, ev.Type)
		return nil
	})
	if err := s.Create(ctx, store.Record{ID: "a"}); err != nil {
		log.Fatal(err)
	}
	if err := s.Append(ctx, "a", runnerscripts.Event{Seq: 1, Type: runnerscripts.TypeSessionIdle}); err != nil {
		log.Fatal(err)
	}
	// Output: 1 session_idle
}
