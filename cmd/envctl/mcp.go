package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

// mcpFlags are the flags of mcp.
type mcpFlags struct {
	target
	delegateFlags
	budgetFlags
	permission string
}

func (a *app) newMCPCmd() *cobra.Command {
	f := &mcpFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Let an editor or an agent of this machine start agents in sandboxes",
		Long: `Serve tools that start agents in sandboxes to an editor or an agent of this machine, which
speaks the Model Context Protocol on standard input and output: list the agents, start them,
prompt, follow and stop them, and get their results.

The agents are those of --delegate and of the delegation in --config; see docs/delegation.md.
Each gets a sandbox of its own: that of its file, else --sandbox. The budget is for all of them
together, and the permissions of --config hold beside their own. Their sessions are stored as
those of 'envctl run'; their sandboxes end when the client closes standard input.`,
		Example: `  envctl mcp --delegate reviewer=reviewer.yaml --sandbox docker --budget 5usd
  claude mcp add agents -- envctl mcp --config /home/me/agents.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.target.flags(cmd)
	f.delegateFlags.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.budget, "budget", "", "end when all agents together have used so much: 2usd, 500000tokens or 100requests")
	fl.StringVarP(&f.permission, "permission", "p", permissionDeny, "what to answer when an agent asks: allow or deny")
	_ = cmd.RegisterFlagCompletionFunc("permission", cobra.FixedCompletions([]string{permissionAllow, permissionDeny}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *mcpFlags) run(ctx context.Context) (err error) {
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	cfg.Sandbox.Type = firstOf(cfg.Sandbox.Type, defaultType)
	if err := errors.Join(f.delegateFlags.apply(&cfg.Delegation), f.budgetFlags.apply(&cfg)); err != nil {
		return err
	}
	if cfg.Delegation.IsZero() {
		return usagef("there is no agent to start; give --delegate NAME=FILE, or delegation.agents in --config")
	}
	if err := cfg.Delegation.Check(); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	answer := unasked
	switch f.permission {
	case permissionDeny:
	case permissionAllow:
		answer = func(_ context.Context, _ string, req environment.PermissionRequest) environment.PermissionDecision {
			return req.Allow()
		}
	default:
		return usagef("--permission: there is no %q for mcp; choose allow or deny", f.permission)
	}
	if term.IsTerminal(f.app.in) {
		fmt.Fprintln(f.app.err, "envctl mcp is for editors and agents: it waits for the Model Context Protocol on standard input; see 'envctl mcp --help'")
	}
	st, closeStore, _, err := f.app.storeOfRuns(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	tools := f.app.delegates(cfg, answer)
	host, err := delegateHost(tools, &cfg, st)
	if err != nil {
		return err
	}
	f.app.status.Off()
	err = tools.Serve(ctx, cfg, io.NopCloser(f.app.in), unclosed{f.app.out})
	ending, stop := f.app.unhurried(ctx)
	defer stop()
	return errors.Join(err, host.Shutdown(ending))
}

// unclosed is standard output, which the program closes.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
