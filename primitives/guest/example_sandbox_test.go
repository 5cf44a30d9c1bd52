package guest_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// A driver connects a Sandbox to its backend. This one serves the sandbox in the same program.
type driver struct{ *local.Sandbox }

func (d driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	here, there := net.Pipe()
	go guest.Serve(context.WithoutCancel(ctx), there, d.Sandbox, guest.ServeConfig{})
	return here, nil
}

func (d driver) State(ctx context.Context) (guest.Status, error) {
	state, err := d.Poll(ctx)
	return guest.Status{State: state}, err
}

func (d driver) End(ctx context.Context) error {
	_, err := d.Terminate(ctx)
	return err
}

// Open makes a complete sandbox from a Driver.
func ExampleOpen() {
	ctx := context.Background()
	made, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := guest.Open(ctx, driver{made}, guest.Config{Backend: "mine"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	_, err = box.Stat(ctx, "missing.txt")
	fmt.Println(err)
	report, err := box.Terminate(ctx)
	fmt.Println(len(report.Killed), err)
	// Output:
	// mine: stat missing.txt: no such file or directory
	// 0 <nil>
}
