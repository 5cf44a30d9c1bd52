// Command cibot makes an agent fix a failing test in a copy of a folder, runs the test itself
// and prints the patch. It fails if the test fails.
//
//	go run ./examples/cibot -config examples/cibot/task.yaml -folder FOLDER -test "go test ./..."
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/agentenv-dev/agentenv/environment"
)

func main() {
	config := flag.String("config", "examples/cibot/task.yaml", "sandbox and agent")
	folder := flag.String("folder", ".", "what the agent gets a copy of")
	test := flag.String("test", "go test ./...", "the command that has to succeed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := fix(ctx, *config, *folder, *test); err != nil {
		log.Fatal(err)
	}
}

func fix(ctx context.Context, config, folder, test string) error {
	cfg, err := environment.LoadConfig(config)
	if err != nil {
		return err
	}
	cfg.Workspace = []environment.Source{{Folder: &environment.Folder{Path: folder, Gitignore: true}}}
	cfg.OnPermission = decide
	env, err := environment.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer env.Close()
	res, err := env.Run(ctx, fmt.Sprintf("Make %q succeed. Change no test.", test))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, res.Text)
	fmt.Fprintf(os.Stderr, "%v, %d tokens read, %d written, $%.2f\n", res.Duration, res.Usage.TotalInput(), res.Usage.OutputTokens, res.Usage.CostUSD)
	for _, title := range res.Rejected {
		fmt.Fprintln(os.Stderr, "rejected:", title)
	}
	if _, err := env.Exec(ctx, "sh", "-c", test); err != nil {
		return err // its message has the end of the output
	}
	return env.Patch(ctx, os.Stdout)
}

// decide allows the agent to work on files, and nothing else.
func decide(_ context.Context, req environment.PermissionRequest) environment.PermissionDecision {
	switch req.ToolCall.Kind {
	case "read", "search", "edit", "delete", "move":
		return req.Allow()
	}
	return req.Reject("You may change files only; the test runs afterwards.")
}
