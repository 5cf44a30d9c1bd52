// Command fork makes an agent read a task once, then tries three ways at the same time, each in
// a copy of its sandbox with the agent's memory. It prints the smallest patch.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/agentenv-dev/agentenv/environment"
)

// scenario is what the scripted agent does.
const scenario = `{"turns": [
	{"when": "read", "steps": [{"text": "I have read it."}]},
	{"when": "try", "steps": [{"write": {"path": "way.txt", "content": "{{history}}{{prompt}}\n"}}]}
]}`

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	env, err := environment.Create(ctx, environment.Config{
		Sandbox:      environment.Sandbox{Type: "local"},
		Agent:        environment.Agent{Name: "script", Config: json.RawMessage(scenario)},
		OnPermission: environment.AllowAll,
	})
	if err != nil {
		return err
	}
	defer env.Close()
	if _, err := env.Run(ctx, "read the task\n"); err != nil {
		return err
	}
	ways := []string{"try it with a new package", "try it in place", "try it with a library of others"}
	copies, err := env.Fork(ctx, len(ways))
	if err != nil {
		return err
	}
	patches := make([]bytes.Buffer, len(ways))
	errs := make([]error, len(ways))
	var all sync.WaitGroup
	for i, c := range copies {
		all.Go(func() {
			_, err := c.Run(ctx, ways[i])
			errs[i] = errors.Join(err, c.Patch(ctx, &patches[i]), c.Close())
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	best := 0
	for i := range patches {
		if patches[i].Len() < patches[best].Len() {
			best = i
		}
	}
	fmt.Printf("# the smallest patch is that of %q\n", ways[best])
	_, err = patches[best].WriteTo(os.Stdout)
	return err
}
