// Command testall is the test command: it runs all tests of the repository, short failures first,
// and reports what they cost and on what machine they ran.
//
// Its stages are:
//
//   - build: compile and vet everything.
//   - quick: the packages that need neither an engine nor agents nor another machine.
//   - bystanders: make what no test may touch. After the tests it must be unchanged.
//   - source: the packages whose tests build from the source they were built from.
//   - rest: first the backends and what is below agents, then everything that starts agents.
//   - floods: tests named TestFlood, which send much or measure memory, without the race detector.
//
// A failure in one of the first three ends the run. The others run to their end.
//
// With the argument "quick" it runs the quick packages only, without the race detector. With
// "machine" it only describes the machine. With other arguments it is go test -race with these, as
// in
//
//	go run ./e2e/testall -run TestMove ./environment
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// common are the flags of every go test of a whole run. With -trimpath the build cache serves a
// clone in another folder, too. Vet has run before.
var common = []string{"-trimpath", "-vet=off", "-count=1", "-timeout=30m"}

// withRaces are the flags that add the race detector. It comes with checks of the pointers of Go, which mean nothing in
// SQLite, a C program that modernc.org translates, and take a third of the time of its tests.
var withRaces = []string{"-race", "-gcflags=modernc.org/...=-d=checkptr=0"}

func main() {
	if len(os.Args) > 3 && os.Args[1] == wrapVerb {
		os.Exit(wrap(os.Args[2], os.Args[3:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 1 && args[0] == "machine" {
		fmt.Print(describeMachine(ctx))
		return nil
	}
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(args) > 0 && args[0] == "quick":
		return goTest(ctx, slices.Concat(args[1:], packages.quick))
	case len(args) > 0:
		return goTest(ctx, slices.Concat(withRaces, args))
	}
	return runAll(ctx, packages)
}

// goTest runs go test as a person would.
func goTest(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, args...)...)
	cmd.Env = append(os.Environ(), raceOptions)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}

func runAll(ctx context.Context, packages packages) (err error) {
	r, err := newRunner(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	// The command line that makes the bystanders is built like the tests.
	if err := errors.Join(os.Setenv("GOFLAGS", "-trimpath"), os.Setenv(bundle.ExplicitVariable, r.envrunner)); err != nil {
		return err
	}
	fmt.Printf("The machine before the tests (temporary files in memory: %t):\n%s\n", r.inMemory, describeMachine(ctx))
	starts := countStarts()
	err = r.all(ctx, packages)
	starts.stop()
	fmt.Printf("\nThe machine after the tests:\n%s\n", describeMachine(context.WithoutCancel(ctx)))
	r.table(os.Stdout, starts)
	return err
}

// raceOptions keep each program with the race detector from waiting a second at its end.
const raceOptions = "GORACE=atexit_sleep_ms=0"

// newRunner prepares what the tests share, above all the runner: a test program that was built with
// -trimpath does not know the source to build it from.
func newRunner(ctx context.Context) (*runner, error) {
	envrunner, err := bundle.Path(ctx, bundle.Config{})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "agentenv-testall-")
	if err != nil {
		return nil, err
	}
	r := &runner{self: self, root: root, dir: dir, envrunner: envrunner, out: os.Stdout, env: append(os.Environ(), raceOptions,
		bundle.ExplicitVariable+"="+envrunner, reportVariable+"="+dir,
	)}
	if err := r.makeTemp(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return r, nil
}

// all runs all stages.
func (r *runner) all(ctx context.Context, packages packages) error {
	race := slices.Concat(common, withRaces, []string{"-p=3"})
	var bystanders *testdocker.Bystanders
	stages := []struct {
		name  string
		run   func() error
		fatal bool // its failure ends the run
	}{
		{"build", func() error { return build(ctx) }, true},
		{"quick", func() error { return r.test(ctx, slices.Concat(race, packages.quick)) }, true},
		{"bystanders", func() (err error) { bystanders, err = testdocker.Plant(ctx); return err }, true},
		{"source", func() error { return r.test(ctx, slices.Concat(race, []string{"-trimpath=false"}, packages.source)) }, false},
		{"rest", func() error { return r.test(ctx, slices.Concat(race, packages.contracts, packages.agents)) }, false},
		{"floods", func() error {
			return r.test(ctx, slices.Concat(common, []string{"-p=1", "-run=^TestFlood"}, packages.floods))
		}, false},
	}
	var failed []error
	for _, s := range stages {
		began := time.Now()
		err := s.run()
		fmt.Printf("stage %s: %.0f s\n", s.name, time.Since(began).Seconds())
		if err != nil {
			failed = append(failed, fmt.Errorf("stage %s: %w", s.name, err))
			if s.fatal || ctx.Err() != nil {
				break
			}
		}
	}
	if bystanders != nil {
		ctx = context.WithoutCancel(ctx)
		failed = append(failed, bystanders.Check(ctx), bystanders.Remove(ctx))
	}
	return errors.Join(failed...)
}

func build(ctx context.Context) error {
	for _, verb := range []string{"build", "vet"} {
		cmd := exec.CommandContext(ctx, "go", verb, "-trimpath", "./...")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w", verb, err)
		}
	}
	return nil
}
