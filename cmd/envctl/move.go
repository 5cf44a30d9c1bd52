package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// moveFlags are the flags of move.
type moveFlags struct {
	target
	makeFlags
	trust bool
}

func (a *app) newMoveCmd() *cobra.Command {
	f := &moveFlags{target: target{app: a}}
	types := primitives.Types()
	cmd := &cobra.Command{
		Use:   "move [flags] ID --to TYPE",
		Short: "Move a session to another sandbox, of another type if need be",
		Long: `Move a session of 'envctl run --keep' to a new sandbox, with its workspace and
its conversation, end the old sandbox, and print the ID of the new one. The agent
remembers, and the name stays. What runs in the old sandbox ends, and of its files outside
the workspace nothing comes along.

The flags and the configuration are those of the new sandbox. Into one that is less
isolated, as from a container to this machine, a session moves with --trust only: its
workspace and the agent's memory are what the old sandbox says they are, and the agent
keeps its permission mode.`,
		Example: `  envctl run --keep --name fix --agent claude --folder . "Fix the test"
  envctl move fix --to docker
  envctl attach fix "Now write a test for it"
  envctl move fix --to local --trust
  envctl move fix --to docker --image my-team/dev:latest --memory 8g`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.sandbox, "to", "", "kind of the new sandbox: "+strings.Join(types, ", "))
	fl.StringVarP(&f.config, "config", "c", "", "configuration file of the new sandbox (YAML or JSON)")
	f.log.flags(cmd)
	f.envFlag(cmd)
	f.agentFlag(cmd)
	fl.BoolVar(&f.trust, "trust", false, "move also to a sandbox that is less isolated, as from a container to this machine")
	f.makeFlags.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(types, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = (&target{app: a}).completeIDs(1)
	return cmd
}

func (f *moveFlags) run(ctx context.Context, id string) error {
	if types := primitives.Types(); f.sandbox != "" && !slices.Contains(types, f.sandbox) {
		return usagef("--to: there is no sandbox %q; %s", f.sandbox, meant(f.sandbox, types))
	}
	to, err := f.loadNew(ctx, &f.makeFlags)
	if err != nil {
		return err
	}
	if f.sandbox == "" && f.config == "" && f.image == "" {
		return usagef("no sandbox to move to was chosen; give --to %s", strings.Join(primitives.Types(), " or --to "))
	}
	at, err := find(ctx, environment.Sandbox{}, id)
	if err != nil {
		return err
	}
	if at.inUse {
		return fmt.Errorf("a program uses %s, and its session cannot move meanwhile; end that first", at.id)
	}
	stored, err := withStoredSession(ctx, id, &at, func(st store.Store, _ session.State, cfg session.Config) error {
		return f.moveFrom(ctx, at, to, &cfg)
	})
	if stored || err != nil {
		return err
	}
	return f.moveFrom(ctx, at, to, nil)
}

// moveFrom moves the content of a sandbox and, unless stored is nil, its stored session.
func (f *moveFlags) moveFrom(ctx context.Context, at location, to environment.Config, stored *session.Config) error {
	env, err := environment.Attach(ctx, environment.Config{
		Sandbox: at.sandbox, Runner: to.Runner, Logger: to.Logger, Agent: environment.Agent{Name: f.named},
	}, at.id)
	if err != nil {
		return err
	}
	to.Sandbox.Keep, to.Trust = true, f.trust
	moved, err := env.Move(ctx, to)
	if moved == nil {
		return errors.Join(err, env.Close())
	}
	_, werr := fmt.Fprintln(f.app.out, moved.ID())
	err = errors.Join(err, werr)
	if stored == nil {
		return errors.Join(err, moved.Close())
	}
	stored.Environment.Sandbox, stored.Environment.Name = to.Sandbox, firstOf(to.Name, stored.Environment.Name)
	stored.Environment.Logger, stored.Environment.Runner = to.Logger, to.Runner
	s, openErr := session.OpenMoved(ctx, *stored, moved)
	if openErr != nil {
		return errors.Join(err, openErr, moved.Close())
	}
	return errors.Join(err, s.Close())
}
