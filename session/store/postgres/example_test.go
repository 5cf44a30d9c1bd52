package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/postgres"
)

// A server locks a session, or learns which server has it.
func Example() {
	ctx := context.Background()
	s, err := postgres.Config{Name: "http://server-1:8080"}.Open(ctx, "postgres://agentenv:password@db/agentenv")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	unlock, err := s.Lock(ctx, "a")
	if errors.Is(err, store.ErrLocked) {
		owner, err := s.Owner(ctx, "a")
		fmt.Println("ask", owner, err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = unlock() }()
}
