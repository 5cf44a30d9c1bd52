package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// logsFlags are the flags of logs.
type logsFlags struct {
	target
	follow, asJSON bool
}

func (a *app) newLogsCmd() *cobra.Command {
	f := &logsFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "logs [flags] ID",
		Short: "Print what happened to a sandbox and its agent",
		Long: `Print what an operator needs to know of a sandbox: for a container when it was started,
paused, killed or out of memory and how it ended, also for a while after it has gone;
for an agent of 'envctl run --keep' when its queries began and how they ended, what its
runner reports, and what was printed to standard error, which has no times.

What the agent says is in 'envctl attach' and 'envctl transcript'.`,
		Example: `  envctl logs 3f2a
  envctl logs --follow 3f2a
  envctl logs --json 3f2a | jq -r 'select(.source == "stderr").message'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on as long as the agent runs")
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (f *logsFlags) run(ctx context.Context, id string) (err error) {
	cfg, found, missing := f.locate(ctx, id)
	if missing != nil && !errors.Is(missing, errNoSandbox) {
		return missing
	}
	if missing != nil {
		return f.remembered(ctx, cfg, id, missing)
	}
	entries, err := environment.History(ctx, found.sandbox, found.id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // ErrNotExist: the engine has forgotten it
		return err
	}
	if err := f.print(entries...); err != nil {
		return err
	}
	env, err := environment.Attach(ctx, cfg, found.id)
	if errors.Is(err, primitives.ErrUnavailable) && len(entries) > 0 {
		fmt.Fprintf(f.app.err, "what its agent has printed cannot be read: %s\n", err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	empty := len(entries) == 0
	for entry, err := range env.Logs(ctx, f.follow) {
		if err != nil {
			return err
		}
		empty = false
		if err := f.print(entry); err != nil {
			return err
		}
	}
	if empty {
		fmt.Fprintf(f.app.err, "nothing is known of %s: no agent has printed anything, and what has happened to it is not remembered\n", found.id)
	}
	return nil
}

// remembered prints the history of a sandbox that no longer exists.
func (f *logsFlags) remembered(ctx context.Context, cfg environment.Config, id string, missing error) error {
	for _, s := range choices(cfg.Sandbox) {
		entries, err := environment.History(ctx, s, id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return errors.Join(missing, err)
		case len(entries) > 0:
			return f.print(entries...)
		}
	}
	return missing
}

func (f *logsFlags) print(entries ...environment.LogEntry) error {
	for _, e := range entries {
		if f.asJSON {
			if err := json.NewEncoder(f.app.out).Encode(e); err != nil {
				return err
			}
			continue
		}
		at := "-                  " // as wide as a time
		if !e.Time.IsZero() {
			at = e.Time.Local().Format(time.DateTime)
		}
		if err := f.app.out.row(dim(at), plain(fmt.Sprintf("  %-6s  %s", e.Source, e.Message))); err != nil {
			return err
		}
	}
	return nil
}
