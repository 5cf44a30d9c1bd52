package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// A Provider creates sandboxes of one kind and finds them again, also from other programs.
func ExampleProvider() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "sandboxes-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	var provider primitives.Provider = local.Provider{Root: root}
	box, err := provider.Create(ctx, primitives.Spec{Keep: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.Close(); err != nil { // the sandbox stays alive
		log.Fatal(err)
	}
	infos, err := provider.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range infos {
		fmt.Println(info.Status, info.Kept)
		if err := provider.Remove(ctx, info.ID); err != nil {
			log.Fatal(err)
		}
	}
	// Output: running true
}

// Refuse names a setting that a kind of sandbox does not support as files name it.
func ExampleSpec_Refuse() {
	spec := primitives.Spec{Image: "node:22", Memory: 1 << 30}
	err := spec.Refuse("there are no images here; leave it out", "image", "ports")
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	fmt.Println(err)
	// Output:
	// true
	// unsupported operation: image: there are no images here; leave it out
}

func ExampleParseSize() {
	size, err := primitives.ParseSize("1.5GiB")
	fmt.Println(int64(size), err)
	// Output: 1610612736 <nil>
}

// A durable command outlives this program. The sandbox keeps its output and its exit status.
func ExampleReattach() {
	ctx := context.Background()
	box, err := local.Provider{Runner: bundle.Find}.Create(ctx, primitives.Spec{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	started, err := box.Exec(ctx, primitives.Command{Args: []string{"echo", "built"}, Durable: true})
	if err != nil {
		log.Fatal(err)
	}
	started.Close() // detaches; another program may reattach by the ID
	proc, err := primitives.Reattach(ctx, box, started.ID(), primitives.Offset{})
	if err != nil {
		log.Fatal(err)
	}
	defer proc.Close()
	out, err := io.ReadAll(proc.Stdout())
	if err != nil {
		log.Fatal(err)
	}
	status, err := proc.Wait(ctx)
	fmt.Print(string(out), status.Code, " ", err)
	// Output:
	// built
	// 0 <nil>
}

// Copies have the same files as the original and share nothing with it afterwards.
func ExampleFork() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := box.WriteFile(ctx, "plan.txt", strings.NewReader("plan A"), primitives.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	copies, err := primitives.Fork(ctx, box, 2)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range copies {
		defer c.Close()
		defer c.Terminate(ctx)
		data, err := primitives.ReadFile(ctx, c, "plan.txt", 0)
		fmt.Println(string(data), err)
	}
	// Output:
	// plan A <nil>
	// plan A <nil>
}

// An operation that a sandbox does not support returns errors.ErrUnsupported. Its Capabilities
// say so beforehand.
func ExampleSnapshot() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if id, err := primitives.Snapshot(ctx, box); err == nil {
		fmt.Println("kept as", id)
	} else if errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("pack the files instead:", box.Capabilities().Snapshot)
	}
	// Output: pack the files instead: false
}

func ExampleReadUsage() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	proc, err := box.Exec(ctx, primitives.Command{Args: []string{"sleep", "60"}})
	if err != nil {
		log.Fatal(err)
	}
	defer proc.Close()
	usage, err := primitives.ReadUsage(ctx, box)
	fmt.Println(usage.Processes > 0, err)
	// Output: true <nil>
}

// MissingCommands finds missing commands before the work begins.
func ExampleMissingCommands() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	missing, err := primitives.MissingCommands(ctx, box, nil, "sh", "no-such-compiler")
	fmt.Println(missing, err)
	// Output: [no-such-compiler] <nil>
}

// A paused sandbox keeps its memory and uses no processor time. Not every kind supports it.
func ExamplePause() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := primitives.Pause(ctx, box); err == nil {
		fmt.Println("goes on:", primitives.Resume(ctx, box))
	} else if errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("it can only be terminated:", box.Capabilities().Pause)
	}
	// Output: it can only be terminated: false
}
