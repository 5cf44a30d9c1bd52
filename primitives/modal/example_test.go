package modal_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// The credentials are those of Modal's own tools.
func ExampleProvider() {
	ctx := context.Background()
	provider := modal.Provider{Runner: bundle.Find, GPU: "T4", Timeout: time.Hour}
	box, err := provider.Create(ctx, primitives.Spec{Image: "node:22-bookworm-slim", Memory: 2 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"node", "--version"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
}
