package guest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// Serve makes a sandbox available at the other end of a byte stream, and Dial uses it
// there. Usually the ends are in different machines.
func ExampleServe() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	here, there := net.Pipe()
	served := make(chan error)
	go func() { served <- guest.Serve(ctx, there, box, guest.ServeConfig{}) }()

	remote, err := guest.Dial(ctx, here, guest.Config{Backend: "pipe"})
	if err != nil {
		log.Fatal(err)
	}
	res, err := remote.Run(ctx, primitives.Command{Args: []string{"echo", "hello"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
	fmt.Println(remote.Close(), <-served)
	// Output:
	// hello
	// <nil> <nil>
}

// The output of the other end instead of a handshake usually shows the cause.
func ExampleDial_handshakeError() {
	here, there := net.Pipe()
	go func() {
		fmt.Fprintln(there, "sh: envrunner: not found")
		there.Close()
	}()
	_, err := guest.Dial(context.Background(), here, guest.Config{})
	var handshake *guest.HandshakeError
	if errors.As(err, &handshake) {
		fmt.Println(strings.TrimSpace(handshake.Output))
	}
	fmt.Println(errors.Is(err, primitives.ErrUnavailable))
	// Output:
	// sh: envrunner: not found
	// true
}
