package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// attachFlags are the flags of attach.
type attachFlags struct {
	target
	budgetFlags
	attachmentFlags
	outputFlags
	ruleFlags
	permission string
	asJSON     bool
	// configure completes the configuration of the agent; it may be nil.
	configure func(context.Context, *environment.Config) error
}

func (a *app) newAttachCmd() *cobra.Command {
	f := &attachFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "attach [flags] ID [PROMPT...]",
		Short: "Follow what an agent does, or go on with its conversation",
		Long: `Print what happens in the query that runs in a sandbox, from its beginning to its
end, also when the program that began it was killed; if none runs, what happened in
the last one. Ctrl-C lets go of it: the query goes on.

ID is that of a sandbox, or of a session of 'envctl sessions ls'. With prompts, go on
with its conversation: in the sandbox if that is there, else in a new one that has the
files and the conversation of the last checkpoint. A sandbox that is not kept ends
afterwards. A query whose end was not shown yet comes first. Ctrl-C interrupts. Variables
that --env gave are stored nowhere: give them again. --allow and --deny add to the rules of the
session, which keeps them. A sandbox of 'envctl create' takes its
agent from the first --agent, and remembers it. Another --agent continues what the last one
has begun, with its files: it gets the conversation as well as it can take it, which is said.

When the agent asks for permission and this is no terminal, it is denied, unless the
program that made the sandbox is there to answer. The exit status is 1 if a query
failed, also one that another program began, 2 if its configuration makes no sense, and
124 if --timeout ended it.`,
		Example: `  envctl attach 3f2a
  envctl attach 3f2a "Now add a test"
  envctl attach 3f2a --agent codex "Go on"
  envctl attach --json 3f2a | jq -r .type`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.app.server != "" {
				return f.runServed(cmd, args[0], args[1:])
			}
			return f.run(cmd.Context(), args[0], args[1:])
		},
	}
	f.target.flags(cmd)
	f.envFlag(cmd)
	f.agentFlag(cmd)
	f.budgetFlags.flags(cmd)
	f.attachmentFlags.flags(cmd)
	f.outputFlags.flags(cmd)
	f.ruleFlags.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.StringVarP(&f.permission, "permission", "p", "", "what to answer when the agent asks: ask, allow or deny (default ask on a terminal)")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON lines")
	_ = cmd.RegisterFlagCompletionFunc("permission", cobra.FixedCompletions([]string{permissionAsk, permissionAllow, permissionDeny}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *attachFlags) run(ctx context.Context, id string, prompts []string) (err error) {
	answer, err := f.app.newAnswerer(f.permission)
	if err != nil {
		return err
	}
	for i, p := range prompts {
		if prompts[i], err = f.app.prompt(p); err != nil {
			return err
		}
	}
	attachments, err := f.attachmentFlags.withPrompts(ctx, prompts)
	if err != nil {
		return err
	}
	schema, err := f.outputFlags.withPrompts(prompts)
	if err != nil {
		return err
	}
	cfg, found, missing := f.locate(ctx, id)
	if _, wrong := errors.AsType[*exitError](missing); wrong {
		return missing
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := errors.Join(f.apply(&cfg), f.addTo(new(permission.Rules))); err != nil {
		return err
	}
	if f.configure != nil {
		if err := f.configure(ctx, &cfg); err != nil {
			return err
		}
	}
	v := f.app.newView(answer, f.app.newTranscriptPrinter(f.asJSON))
	v.attachments = attachments
	v.endsWith(schema)
	v.withoutEnv = len(cfg.Agent.Env) == 0 && len(prompts) > 0
	cfg.OnPermission, cfg.PermissionTimeout = v.decide, -1
	cfg.Budget.Ask = cfg.Budget.Ask || answer.policy == permissionAsk
	defer func() { err = errors.Join(err, v.show.finish()) }()
	sandbox := &found
	if missing != nil {
		sandbox = nil
	}
	resumed, err := withStoredSession(ctx, id, sandbox, func(st store.Store, state session.State, stored session.Config) error {
		if err := errors.Join(f.overrideStored(&stored.Environment, cfg), f.addTo(&stored.Environment.Permissions)); err != nil {
			return err
		}
		if name := stored.Environment.Name; name != "" && sandbox == nil {
			if at, err := find(ctx, stored.Environment.Sandbox, name); err == nil && at.id != state.Environment.ID {
				stored.Environment.Name = "" // another sandbox has the name now
			}
		}
		if sandbox != nil && !stored.Environment.Sandbox.Keep && len(prompts) == 0 {
			return v.lookAt(ctx, st, state, *sandbox) // opening the session would end the sandbox afterwards
		}
		endDelegates, err := v.delegate(&stored.Environment, st)
		if err != nil {
			return err
		}
		err = errors.Join(v.resumeSession(ctx, state, stored, prompts), endDelegates(context.WithoutCancel(ctx)))
		if errors.Is(err, store.ErrLocked) && missing != nil {
			_, found, missing = f.locate(ctx, state.Environment.ID)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrLocked) && len(prompts) == 0 && missing == nil:
		// The owner of the session runs. If the sandbox is kept, its query can be followed.
		v.unnumbered = true // the store has other numbers
		followed := f.follow(ctx, v, cfg, found, prompts)
		if status, ok := errors.AsType[*exitError](followed); ok && status.code == exitUsage && status.err != nil {
			return err
		}
		return followed
	case resumed || err != nil:
		return err
	case errors.Is(missing, errNoSandbox):
		return fmt.Errorf("%w, and 'envctl sessions ls' the stored sessions", missing)
	case missing != nil:
		return missing
	}
	return f.follow(ctx, v, cfg, found, prompts)
}

// follow follows the query of a sandbox and runs the prompts, without opening a stored session.
func (f *attachFlags) follow(ctx context.Context, v *view, cfg environment.Config, found location, prompts []string) (err error) {
	answer := v.answer
	cfg.Sandbox = found.sandbox
	if err := f.addTo(&cfg.Permissions); err != nil {
		return err
	}
	endDelegates, err := v.delegateStored(ctx, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endDelegates(context.WithoutCancel(ctx))) }()
	env, err := environment.Attach(ctx, cfg, found.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	answer.inside(env, cfg)
	unseen, err := env.Unattended(ctx)
	if err != nil {
		return err
	}
	if unseen || len(prompts) == 0 {
		if found.inUse && f.permission == "" && answer.policy == permissionDeny {
			v.answer = nil // its owner answers
		}
		err = v.print(ctx, v.numbered(env.FollowQuery(ctx, 0)))
	}
	switch {
	case errors.Is(err, environment.ErrNoQuery) && len(prompts) == 0:
		if _, err := env.ReadTranscript(ctx); errors.Is(err, environment.ErrConfig) {
			return err // no agent is known, so a prompt would fail, too
		}
		return usagef("no query has been begun in %s that could be followed; give a prompt", env.ID())
	case ctx.Err() != nil:
		fmt.Fprintf(f.app.err, "the query goes on: follow it with 'envctl attach %s'\n", whereFlag(found.sandbox)+env.ID())
		return err
	}
	v.answer = answer
	for i, p := range prompts {
		if err != nil {
			break // a failure ends the conversation, as in run
		}
		q := v.query(p, i == len(prompts)-1)
		err = refused(v.print(ctx, v.numbered(env.ExecuteQuery(ctx, q))), q)
	}
	return err
}
