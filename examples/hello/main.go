// Command hello runs the scripted agent in a local sandbox and prints what it says.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, // or "docker" or "modal"
		Agent:   environment.Agent{Name: "script"},  // or "claude", "codex", ...
	})
	if err != nil {
		return err
	}
	defer env.Close() // ends the sandbox
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "Say hello"}) {
		if err != nil {
			return err
		}
		fmt.Print(ev.Text())
	}
	fmt.Println()
	return nil
}
