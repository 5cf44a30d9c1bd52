package environment_test

import (
	"context"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
)

// remembering returns an agent that answers with its earlier prompts.
func remembering() environment.Agent {
	return environment.Agent{Name: "script", Config: []byte(`{"turns": [{"steps": [{"text": "before: [{{history}}]"}]}]}`)}
}

func ask(ctx context.Context, env *environment.Environment, prompt string) {
	for ev, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: prompt}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(ev.Text())
	}
	fmt.Println()
}

// Several copies can continue one conversation, each in its own sandbox.
func ExampleEnvironment_Fork() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: remembering(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	ask(ctx, env, "read the code")
	copies, err := env.Fork(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	for i, c := range copies {
		defer c.Close()
		ask(ctx, c, fmt.Sprintf("try idea %d", i+1))
	}
	// Output:
	// before: []
	// before: [read the code]
	// before: [read the code]
}

// A pool keeps sandboxes ready before they are needed.
func ExamplePool() {
	ctx := context.Background()
	pool, err := environment.NewPool(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Pool: environment.PoolConfig{Size: 2},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	env, err := pool.Create(ctx, environment.Config{Agent: remembering()})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	ask(ctx, env, "hello")
	// Output: before: []
}
