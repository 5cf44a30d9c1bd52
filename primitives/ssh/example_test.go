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

// Ports, keys and jump hosts are those of the ssh command's configuration.
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

// What another machine cannot do is refused before it is contacted.
func ExampleProvider_Create() {
	provider := ssh.Provider{Host: "build1", Runner: bundle.Find}
	_, err := provider.Create(context.Background(), primitives.Spec{Image: "debian:12"})
	fmt.Println(errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrInvalid))
	// Output: true false
}
