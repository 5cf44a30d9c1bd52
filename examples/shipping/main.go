// Command shipping is a single file that runs on machines without Go: it embeds the runner for
// sandboxes on linux/amd64.
//
//	go generate && CGO_ENABLED=0 go build
package main

import (
	"context"
	"embed"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	_ "github.com/agentenv-dev/agentenv/primitives/docker" // for the type "docker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

//go:generate env CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -ldflags "-s -w" -o runners/envrunner-linux-amd64 github.com/agentenv-dev/agentenv/runnerscripts/runner

//go:embed runners
var runners embed.FS

func main() {
	bundle.Embed(runners)
	if err := run(context.Background(), os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run takes the type of the sandbox and the image of a container as arguments.
func run(ctx context.Context, args []string) (err error) {
	box := environment.Sandbox{Type: "local"}
	if len(args) == 2 {
		box = environment.Sandbox{Type: args[0], Spec: primitives.Spec{Image: args[1], Network: "none"}}
	}
	env, err := environment.Create(ctx, environment.Config{Sandbox: box, Agent: environment.Agent{Name: "script"}})
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
