//go:build linux

// Command bench measures agentenv against the floors of the machine it runs on,
// base and ours in turn, and prints a table of base, ours, ratio and target.
//
//	go run ./e2e/bench                 # everything
//	go run ./e2e/bench -only exec      # rows whose name contains exec
//	go run ./e2e/bench -json           # for programs
//
// It is a benchmark, not a test: a missed target is shown, and the exit status
// is still 0.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Stdout, os.Stderr, os.Args)
	stop()
	os.Exit(code)
}

// benchmark returns one or more rows.
type benchmark struct {
	name string
	run  func(ctx context.Context) ([]row, error)
}

func run(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	if code, ok := child(ctx, args); ok {
		return code
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "run only benchmarks whose name contains this")
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	var rows []row
	for _, b := range benchmarks() {
		if !strings.Contains(b.name, *only) {
			continue
		}
		fmt.Fprintf(stderr, "measuring %s ...\n", b.name)
		r, err := b.run(ctx)
		if lack, ok := errors.AsType[missing](err); ok && ctx.Err() == nil {
			fmt.Fprintf(stderr, "bench: left out %s: %v\n", b.name, lack)
			continue
		}
		if err != nil {
			fmt.Fprintf(stderr, "bench: %s: %v\n", b.name, err)
			return 1
		}
		rows = append(rows, r...)
	}
	if len(rows) == 0 {
		fmt.Fprintln(stderr, "bench: nothing was measured")
		return 1
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(rows); err != nil {
			return 1
		}
		return 0
	}
	printTable(stdout, rows)
	return 0
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "metric\tunit\tbase\tours\tratio\ttarget\tmet\tcompared with")
	for _, r := range rows {
		sign := "<="
		if r.Better != lower {
			sign = ">="
		}
		met := "no"
		if r.Met {
			met = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s %s\t%s\t%s\n",
			r.Name, r.Unit, format(r.BaseV), format(r.Ours), format(r.Ratio), sign, format(r.Target), met, r.Base)
	}
	t.Flush()
}
