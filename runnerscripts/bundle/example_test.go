package bundle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// Find is the Runner of a provider.
func ExampleFind() {
	provider := docker.Provider{Runner: bundle.Find}
	file, err := provider.Runner(context.Background(), "linux", "amd64")
	if err != nil {
		log.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Mode().IsRegular(), info.Mode()&0o100 != 0)
	// Output: true true
}

// Path fails if the named runner cannot be used. It tries nothing else.
func ExamplePath() {
	_, err := bundle.Path(context.Background(), bundle.Config{Explicit: "/no/such/envrunner", OS: "linux", Arch: "arm64"})
	fmt.Println(errors.Is(err, bundle.ErrNotFound))
	// Output: true
}

// A program that carries the runners calls Embed at the start of main. The files usually
// come from a go:embed directive.
func ExampleEmbed() {
	bundle.Embed(os.DirFS("runners")) // with envrunner-linux-amd64 and envrunner-linux-arm64
	file, err := bundle.Find(context.Background(), "linux", "arm64")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(file)
}
