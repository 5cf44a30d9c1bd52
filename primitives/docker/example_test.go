package docker_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// The Spec has the settings that all kinds of sandboxes share, the Provider those that only
// containers have.
func ExampleProvider() {
	ctx := context.Background()
	provider := docker.Provider{Runner: bundle.Find, Pull: docker.PullMissing}
	box, err := provider.Create(ctx, primitives.Spec{
		Image: "debian:12", Network: "none", CPUs: 2, Memory: 1 << 30,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"uname", "-s"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
}

// Create refuses an invalid setting before it asks the engine for a container.
func ExampleProvider_Create_invalid() {
	provider := docker.Provider{Runner: bundle.Find}
	_, err := provider.Create(context.Background(), primitives.Spec{Image: "debian:12", Ports: []int{70000}})
	fmt.Println(err)
	// Output: docker: create debian:12: invalid argument: ports[0]: 70000 is no port; give a number from 1 to 65535
}

// A snapshot is an image. It stays until it is removed.
func ExampleProvider_RemoveSnapshot() {
	ctx := context.Background()
	provider := docker.Provider{Runner: bundle.Find}
	box, err := provider.Create(ctx, primitives.Spec{Image: "debian:12"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	image, err := primitives.Snapshot(ctx, box)
	if err != nil {
		log.Fatal(err)
	}
	copied, err := provider.Create(ctx, primitives.Spec{Image: image})
	if err != nil {
		log.Fatal(err)
	}
	_, err = copied.Terminate(ctx)
	if err := errors.Join(err, copied.Close(), provider.RemoveSnapshot(ctx, image)); err != nil {
		log.Fatal(err)
	}
}
