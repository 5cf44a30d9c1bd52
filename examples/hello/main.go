// Command hello runs the scripted agent in a local sandbox and prints what it says.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
)

func main() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent:   environment.Agent{Name: "script"}, // or "claude"
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "Say hello"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
	}
}
