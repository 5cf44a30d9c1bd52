package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// The ssh command's configuration provides ports, keys and jump hosts.
func ExampleProvider() {
	ctx := context.Background()
	provider := ssh.Provider{Host: "build1", Runner: bundle.Find}
	box, err := provider.Create(ctx, primitives.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"uname", "-m"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
}

// Create refuses unsupported settings before it contacts the machine.
func ExampleProvider_Create() {
	provider := ssh.Provider{Host: "build1", Runner: bundle.Find}
	_, err := provider.Create(context.Background(), primitives.Spec{Image: "debian:12"})
	fmt.Println(errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrInvalid))
	// Output: true false
}
