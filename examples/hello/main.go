// Command hello runs the scripted agent in a local sandbox and prints the result.
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
		Sandbox:      environment.Sandbox{Type: "local"}, // or "docker", which takes an import
		Agent:        environment.Agent{Name: "script"},  // or "claude", "codex", ...
		OnPermission: environment.AllowAll,               // or a function that decides; nil rejects
	})
	if err != nil {
		return err
	}
	defer env.Close() // ends the sandbox
	res, err := env.Run(ctx, "Say hello")
	if err != nil {
		return err
	}
	fmt.Println(res.Text)
	for _, change := range res.Changes {
		fmt.Println(change.Kind, change.Path)
	}
	return nil
}
