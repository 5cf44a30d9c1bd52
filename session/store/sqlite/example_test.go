package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// A session in a folder survives its program: the next program continues it.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sessions")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var id string
	for _, prompt := range []string{"Good morning", "Good evening"} { // as two programs would
		sessions, err := sqlite.Open(ctx, dir)
		if err != nil {
			log.Fatal(err)
		}
		s, err := session.Open(ctx, session.Config{
			ID:    id, // empty the first time
			Store: sessions,
			Environment: environment.Config{
				Sandbox: environment.Sandbox{Type: "local"},
				Agent: runnerscripts.Agent{
					Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "turn {{turn}}, before: {{history}}."}]}]}`),
				},
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		id = s.ID()
		turn, err := s.Prompt(ctx, prompt)
		if err != nil {
			log.Fatal(err)
		}
		c, err := session.Reduce(turn.Events(ctx))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(c.Blocks[len(c.Blocks)-1].Text)
		if err := s.Close(); err != nil {
			log.Fatal(err)
		}
		for r := range sessions.List(ctx, store.Filter{Agent: "script"}) {
			fmt.Println(r.ID == id)
		}
		if err := sessions.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// turn 1, before: .
	// true
	// turn 2, before: Good morning.
	// true
}
