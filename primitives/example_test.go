package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// A sandbox runs commands and holds files. This one is a directory of this machine; sandboxes
// of other backends have the same methods.
func Example() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	err = box.WriteFile(ctx, "greeting.txt", strings.NewReader("hello\n"), primitives.WriteOptions{})
	if err != nil {
		log.Fatal(err)
	}
	res, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"cat", "greeting.txt"}}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
	// Output: hello
}

// An exit status is data. The error only reports that the command did not start, or that the
// sandbox is unavailable.
func ExampleRun() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	cmd := primitives.Command{Args: []string{"sh", "-c", "tr a-z A-Z; echo no more >&2; exit 3"}}
	res, err := primitives.Run(ctx, box, cmd, primitives.RunOptions{Stdin: strings.NewReader("some input")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %q, %q\n", res.Stdout, res.Stderr, res.Status.Reason)
	fmt.Println(res.Status.Success(), res.Status.Code)
	// Output:
	// SOME INPUT, "no more\n", "exited"
	// false 3
}

// A command has its own directory and variables. It inherits nothing of this program's
// environment.
func ExampleCommand() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	if err := box.Mkdir(ctx, "docs", 0); err != nil {
		log.Fatal(err)
	}
	res, err := primitives.Run(ctx, box, primitives.Command{
		Args: []string{"sh", "-c", `echo "$TOPIC in ${PWD##*/}"`},
		Dir:  "docs",
		Env:  []string{"TOPIC=sandboxes"},
	}, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(res.Stdout))
	// Output: sandboxes in docs
}

// A timeout ends the command and all processes that it started.
func ExampleCommand_timeout() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	cmd := primitives.Command{Args: []string{"sleep", "60"}, Timeout: 100 * time.Millisecond}
	res, err := primitives.Run(ctx, box, cmd, primitives.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Status.Reason, res.Status.Success())
	// Output: timeout false
}

// Exec starts a command. The caller uses its streams while it runs.
func ExampleProcess() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	proc, err := box.Exec(ctx, primitives.Command{Args: []string{"sort"}, Stdin: true})
	if err != nil {
		log.Fatal(err)
	}
	defer proc.Close()
	fmt.Fprintln(proc.Stdin(), "pear\napple")
	proc.Stdin().Close()
	out, err := io.ReadAll(proc.Stdout())
	if err != nil {
		log.Fatal(err)
	}
	status, err := proc.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(out), status.Reason, "\n")
	// Output:
	// apple
	// pear
	// exited
}

// Collect waits for a process that was started before, as Run does.
func ExampleCollect() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)
	proc, err := box.Exec(ctx, primitives.Command{Args: []string{"echo", "a long story"}})
	if err != nil {
		log.Fatal(err)
	}
	res, err := primitives.Collect(ctx, proc, primitives.RunOptions{MaxOutput: 6})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %d bytes dropped, %d\n", res.Stdout, res.StdoutDropped, res.Status.Code)
	// Output: a long, 7 bytes dropped, 0
}

// A sentinel says what went wrong. The Error around it says where.
func ExampleError() {
	ctx := context.Background()
	box, err := local.New(ctx, local.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	defer box.Terminate(ctx)

	_, err = primitives.ReadFile(ctx, box, "missing.txt", 0)
	var where *primitives.Error
	if errors.As(err, &where) {
		fmt.Println(where.Backend, where.Op, where.Target)
	}
	fmt.Println(errors.Is(err, fs.ErrNotExist))

	_, err = box.Exec(ctx, primitives.Command{Args: []string{"no-such-program"}})
	fmt.Println(errors.Is(err, primitives.ErrCommandNotFound))

	_, err = box.Stat(ctx, "../outside")
	fmt.Println(errors.Is(err, primitives.ErrPathEscape))
	// Output:
	// local open missing.txt
	// true
	// true
	// true
}
