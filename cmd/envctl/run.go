package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	outputfile "github.com/agentenv-dev/agentenv/internal/output"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// runFlags are the flags of run.
type runFlags struct {
	target
	makeFlags
	workspaceFlags
	agentFlags
	identityFlags
	budgetFlags
	attachmentFlags
	outputFlags
	in                string // the ID of an existing sandbox
	permission        string
	patch, branch     string
	apply             bool
	keep, asJSON, raw bool
	dryRun            bool

	source      *environment.Folder // the source of the whole workspace; nil if there is none
	staysOnHost bool                // the workspace is a folder of this machine
	stored      string              // the ID of the session if it is stored
}

func (a *app) newRunCmd() *cobra.Command {
	f := &runFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "run [flags] PROMPT...",
		Short: "Run an agent in a sandbox",
		Long: `Run an agent in a new sandbox, give it a prompt and print what it does.

Each argument is one prompt; they are answered in turn in one conversation. "-" reads a prompt
from standard input. The files of --attach come with the first one. The sandbox ends with the
command, unless --keep is given. What was said and the files of the workspace are stored as a
session, on this machine: 'envctl attach' goes on with it, 'envctl sessions' lists and removes
them. With --in the agent runs in a sandbox that is there, and that stays.
Ctrl-C interrupts the agent and waits for it, a few seconds at most; a second Ctrl-C does
not wait.

The folder of --folder comes with its git history, see --history. With --branch the commits
of the agent come back as a branch of that repository, and what it did not commit as one more
commit on it; no file of the folder changes. With --apply what changed in the workspace is
made in the folder itself, if that is as it was copied. With none of --apply, --branch,
--patch and --keep it is saved as a patch, and where is printed.

With --json every event is one line of JSON on standard output, with its "type" and
a "seq" that counts without a gap: from 1, or with --in from where the stored session of that
sandbox ends. The exit status is 1 if a query failed, and 124 if --timeout ended it; that
something was denied is no failure.

With --output-schema the answer to the last prompt is JSON that matches a JSON schema, and all
that standard output holds; an agent whose answer does not match is asked again, twice at most.

With --dry-run nothing starts, is stored or reaches a network: what is given is checked, and the
whole configuration is printed as a file for --config, with the profile and without secrets.
The agent's program is looked for only in the sandbox, and so is what the engine has.
A prompt may be left out.`,
		Example: `  envctl run "Say hello"
  envctl run --agent claude --folder . --apply "Fix the failing test"
  envctl run --agent claude --folder . --branch fix "Fix the failing test and commit"
  envctl run --agent claude --folder . --patch fix.patch "Fix the failing test"
  envctl run --json "Say hello" | jq -r .type
  envctl run --dry-run --agent claude --profile ./reviewer --budget 2usd >task.yaml
  envctl run --sandbox docker --agent claude --folder . --apply "Fix the failing test"
  envctl run --in web --agent codex "Explain this code"
  envctl run --agent claude --folder . --attach mockup.png "Build this page"
  envctl run --agent codex --folder . --output-schema bug.json "Find the bug" | jq .line
  envctl run --agent claude --budget 2usd --timeout 10m --folder . --apply "Fix the failing test"
  envctl run --agent claude --record fix.replay --folder . "Fix the failing test"
  envctl run --agent claude --replay fix.replay --sandbox docker --folder . "Fix the failing test"
  envctl run --agent claude --permission allow --git https://example.com/repo.git "Explain this code"`,
		Args: func(cmd *cobra.Command, prompts []string) error {
			if f.dryRun {
				return nil
			}
			return cobra.MinimumNArgs(1)(cmd, prompts)
		},
		RunE: func(cmd *cobra.Command, prompts []string) error {
			switch {
			case f.app.server != "":
				return f.runServed(cmd, prompts)
			case cmd.Flags().Changed("in"):
				return f.runIn(cmd, prompts)
			}
			return f.run(cmd.Context(), prompts)
		},
	}
	f.target.flags(cmd)
	f.envFlag(cmd)
	f.workspaceFlags.flags(cmd)
	f.makeFlags.flags(cmd)
	f.agentFlags.flags(cmd)
	f.identityFlags.flags(cmd)
	f.budgetFlags.flags(cmd)
	f.attachmentFlags.flags(cmd)
	f.outputFlags.flags(cmd)
	f.ownFlags(cmd)
	return cmd
}

// ownFlags adds the flags of run alone.
func (f *runFlags) ownFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.in, "in", "", "run the agent in this sandbox, as of 'envctl create', instead of a new one")
	fl.StringVarP(&f.permission, "permission", "p", "", "what to answer when the agent asks: ask, allow or deny (default ask on a terminal, deny elsewhere)")
	fl.StringVar(&f.patch, "patch", "", `write what changed in the workspace as a patch to this file ("-": standard output)`)
	fl.StringVar(&f.branch, "branch", "", "bring the agent's commits, and the rest as one more, to this branch of the repository of --folder")
	fl.BoolVar(&f.apply, "apply", false, "make what changed in the folder of --folder; refused if that has changed meanwhile")
	fl.BoolVar(&f.keep, "keep", false, "keep the sandbox, and print its ID in the last line")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON lines")
	fl.BoolVar(&f.dryRun, "dry-run", false, "check everything and print the whole configuration, but start nothing")
	fl.BoolVar(&f.raw, "raw", false, "with --json: the agent's own lines, too")
	_ = cmd.RegisterFlagCompletionFunc("in", f.completeIDs(0))
	_ = cmd.RegisterFlagCompletionFunc("permission",
		cobra.FixedCompletions([]string{permissionAsk, permissionAllow, permissionDeny}, cobra.ShellCompDirectiveNoFileComp))
}

// runIn runs the agent in an existing sandbox, as attach does.
func (f *runFlags) runIn(cmd *cobra.Command, prompts []string) error {
	for _, flag := range []string{
		"image", "network", "allow-host", "memory", "cpus", "folder", "gitignore", "history", "git", "tar", "name", "id-file", "keep", "patch", "apply", "branch", "dry-run",
	} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s is for a new sandbox, and --in names one that is there; leave one of them out", flag)
		}
	}
	if f.raw && !f.asJSON {
		return usagef("--raw has no effect without --json; give both")
	}
	at := &attachFlags{target: f.target, attachmentFlags: f.attachmentFlags, outputFlags: f.outputFlags, permission: f.permission, asJSON: f.asJSON}
	at.configure = func(ctx context.Context, cfg *environment.Config) error {
		unnamed := f.agent == "" && cfg.Agent.Name == ""
		err := errors.Join(f.agentFlags.apply(ctx, f.config, cfg), f.budgetFlags.apply(cfg))
		if unnamed {
			cfg.Agent.Name = "" // use the agent that has run in the sandbox
		}
		cfg.Raw = cfg.Raw || f.raw
		return err
	}
	return at.run(cmd.Context(), f.in, prompts)
}

func (f *runFlags) run(ctx context.Context, prompts []string) (err error) {
	cfg, err := f.configure(ctx)
	if err != nil {
		return err
	}
	for i, p := range prompts {
		if prompts[i], err = f.app.prompt(p); err != nil {
			return err
		}
	}
	attachments, err := f.readAttachments(ctx, cfg)
	if err != nil {
		return err
	}
	schema, err := f.readSchema(cfg)
	if err != nil {
		return err
	}
	answer, err := f.app.newAnswerer(f.permission)
	if err != nil {
		return err
	}
	if f.dryRun {
		return f.printConfig(ctx, cfg, prompts)
	}
	v := f.app.newView(answer, f.newPrinter(prompts))
	v.attachments = attachments
	v.endsWith(schema)
	cfg.OnPermission, cfg.PermissionTimeout = v.decide, answer.timeout()
	st, closeStore, stored, err := f.app.storeOfRuns(ctx, f.keep)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	endDelegates, err := v.delegate(&cfg, st)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endDelegates(context.WithoutCancel(ctx))) }()
	var made atomic.Pointer[environment.Environment] // set by the session's goroutine
	s, err := session.Open(ctx, session.Config{Environment: cfg, Create: f.create(answer, &made), Store: st, NoFiles: !stored})
	if err != nil {
		return notOpened(ctx, err)
	}
	if stored {
		f.stored = s.ID()
	}
	err = v.prompts(ctx, logOf(s, st), prompts)
	err = errors.Join(err, v.show.finish())
	if state, _ := s.State(ctx); state.Environment.Status != session.EnvironmentReady && f.keep {
		made.Store(nil) // the agent could not be started, and the sandbox has ended
	}
	if env := made.Load(); env != nil {
		out, stop := f.app.unhurried(ctx)
		err = errors.Join(err, f.bringOut(out, env, err))
		stop()
		if f.keep {
			err = errors.Join(err, f.printKept(cfg.Sandbox, env.ID()))
		}
	}
	ends := made.Load() // the sandbox that ends with the session
	if f.keep {
		ends = nil
	}
	ended := f.app.closeSession(ctx, s, ends)
	if !f.keep && stored {
		f.app.pointToSession(s.ID())
	}
	if env := made.Load(); env != nil && err != nil && ctx.Err() == nil {
		f.pointToLogs(ctx, cfg.Sandbox, env.ID())
	}
	return errors.Join(err, ended)
}

// newPrinter returns the printer of a run.
func (f *runFlags) newPrinter(prompts []string) printer {
	if len(prompts) > 1 {
		return f.app.newTranscriptPrinter(f.asJSON) // says which prompt is answered
	}
	return f.app.newPrinter(f.asJSON)
}

// create returns a function that creates the sandbox, stores it in made and lets answer ask about it.
func (f *runFlags) create(answer *answerer, made *atomic.Pointer[environment.Environment]) func(context.Context, environment.Config) (*environment.Environment, error) {
	return func(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
		// Ask is not stored: a later program may have no user to ask.
		cfg.Budget.Ask = cfg.Budget.Ask || answer.policy == permissionAsk
		env, err := environment.Create(ctx, cfg)
		if err != nil {
			return nil, err
		}
		if err := f.write(env.ID()); err != nil {
			return nil, errors.Join(err, env.Close(), environment.Remove(ctx, cfg.Sandbox, env.ID()))
		}
		made.Store(env)
		answer.inside(env, cfg)
		return env, nil
	}
}

// pointToLogs prints the logs command for the sandbox of a failed run, if there is anything to
// read.
func (f *runFlags) pointToLogs(ctx context.Context, s environment.Sandbox, id string) {
	if entries, err := environment.History(ctx, s, id); f.keep || err == nil && len(entries) > 0 {
		fmt.Fprintf(f.app.err, "sandbox %s: 'envctl logs %s' tells what happened there\n", id, whereFlag(s)+id)
	}
}

// printKept prints the ID of a kept sandbox, as create does, and the commands that use it.
func (f *runFlags) printKept(s environment.Sandbox, id string) error {
	name := whereFlag(s) + firstOf(f.name, id)
	fmt.Fprintf(f.app.err, "kept: go on with 'envctl attach %[1]s PROMPT', look into it with 'envctl exec -t %[1]s -- sh', end it with 'envctl rm %[1]s'\n", name)
	if f.fillsOutput() {
		return nil
	}
	_, err := fmt.Fprintln(f.app.out, id)
	return err
}

// fillsOutput reports whether standard output holds events, a patch or an output, and nothing else may.
func (f *runFlags) fillsOutput() bool { return f.asJSON || f.patch == "-" || f.schema != "" }

// configure returns the configuration of the file, overridden by the flags.
func (f *runFlags) configure(ctx context.Context) (environment.Config, error) {
	cfg, err := f.loadNew(ctx, &f.makeFlags)
	if err != nil {
		return cfg, err
	}
	if err := f.agentFlags.apply(ctx, f.config, &cfg); err != nil {
		return cfg, err
	}
	if err := errors.Join(f.identityFlags.apply(&cfg), f.budgetFlags.apply(&cfg)); err != nil {
		return cfg, err
	}
	cfg.Raw = cfg.Raw || f.raw
	f.keep = f.keep || cfg.Sandbox.Keep
	cfg.Sandbox.Keep = f.keep
	given, err := f.sources()
	if err != nil {
		return cfg, err
	}
	cfg.Workspace = append(cfg.Workspace, given...)
	if len(cfg.Workspace) == 1 && cfg.Workspace[0].Into == "" {
		f.source = cfg.Workspace[0].Folder
	}
	if err := absolute(cfg.Workspace); err != nil {
		return cfg, err
	}
	f.staysOnHost = cfg.Sandbox.Workspace != ""
	if err := f.check(cfg); err != nil {
		return cfg, err
	}
	return cfg, f.checkBranch(ctx)
}

// check rejects, before the run, flags that would fail after it.
func (f *runFlags) check(cfg environment.Config) error {
	if f.apply && f.source == nil {
		return usagef("--apply makes the changes in the folder of --folder, which must be all that is in the workspace; give --folder")
	}
	if f.raw && !f.asJSON {
		return usagef("--raw has no effect without --json; give both")
	}
	if f.asJSON && f.patch == "-" {
		return usagef("--patch -: with --json standard output holds the events; give --patch a file")
	}
	if f.schema != "" && f.patch == "-" {
		return usagef("--patch -: with --output-schema standard output holds the output; give --patch a file")
	}
	if len(cfg.Workspace) == 0 && !f.staysOnHost && f.app.err.Terminal && cfg.Agent.Name != "script" {
		_ = f.app.err.Println(term.Dim("the workspace is empty (--folder . copies this folder)"))
	}
	if f.patch == "" || f.patch == "-" {
		return nil
	}
	if info, err := os.Lstat(f.patch); err == nil && info.IsDir() {
		return usagef("--patch: %s is a folder; give a file", f.patch)
	} else if err == nil && !info.Mode().IsRegular() { // a sandbox may have made it, in a mounted folder
		return usagef("--patch: %s is a link or a device; give a file, or - for standard output", f.patch)
	}
	if _, err := os.Stat(filepath.Dir(f.patch)); err != nil {
		return usagef("--patch: %w; give a file in a folder that exists", err)
	}
	return nil
}

// prompt returns the prompt of an argument; "-" reads it from standard input.
func (a *app) prompt(arg string) (string, error) {
	if arg == "-" {
		text, err := io.ReadAll(a.in)
		if err != nil {
			return "", fmt.Errorf("read the prompt from standard input: %w", err)
		}
		arg = string(text)
	}
	if strings.TrimSpace(arg) == "" {
		return "", usagef("the prompt is empty; say what the agent should do")
	}
	return arg, nil
}

// interrupt interrupts the running query and waits for its end. At a second interrupt it returns
// at once, and the query ends with the session, which may take hurryTimeout.
func (a *app) interrupt(ctx context.Context, s conversation, turn query) {
	why := interruption(ctx)
	ctx, stop := a.unhurried(ctx)
	defer stop()
	if s.Interrupt(ctx) != nil {
		return
	}
	_ = a.err.Println(term.Dim("interrupting the agent; " + why.again() + " ends it within " + hurryTimeout.String()))
	defer a.status.Busy("waiting for the agent to stop")()
	_, _ = turn.Wait(ctx) // the events say how it ended
}

// unhurried returns a context that outlives ctx and is cancelled when a.forceExit is closed.
func (a *app) unhurried(ctx context.Context) (unhurried context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if a.forceExit != nil {
		go func() {
			select {
			case <-a.forceExit:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// failed returns the error of a query whose query_failed event was already printed.
func failed(err error) error {
	var q *session.QueryError
	switch {
	case !errors.As(err, &q):
		return err
	case errors.Is(err, environment.ErrConfig), q.Failure.Code == runnerscripts.FailUnknownAgent, q.Failure.Code == runnerscripts.FailUnsupported:
		return &exitError{code: exitUsage}
	case overTime(err):
		return &exitError{code: exitTimeout}
	}
	return &exitError{code: exitFailure}
}

// writePatch writes the changes as a patch to the file of --patch, and prints where. A patch that
// is not complete is removed.
func (f *runFlags) writePatch(ctx context.Context, of outcome) (err error) {
	var w io.Writer = f.app.out
	to := "to standard output"
	if f.patch != "-" {
		file, err := outputfile.Open(f.patch, os.O_WRONLY|os.O_TRUNC)
		if err != nil {
			return f.patchAgain(err)
		}
		w, to = file, "to "+f.patch
		if err := errors.Join(of.Patch(ctx, w), file.Close()); err != nil {
			return errors.Join(f.patchAgain(err), os.Remove(f.patch))
		}
	} else if err := of.Patch(ctx, w); err != nil {
		return err
	}
	changes, err := of.Changes(ctx)
	if err != nil {
		return err
	}
	if len(changes) == 0 {
		err = f.app.err.Row(term.Dim("nothing changed in the workspace: the patch is empty"))
	} else {
		err = f.app.err.Row(term.Plain(counted(changes) + ": the patch was written " + to))
	}
	return errors.Join(err, f.app.noteIgnored(of), f.app.notePatch(changes, f.applyCommand(f.patch, changes)))
}

// patchAgain adds to the error of a patch the command that writes it again.
func (f *runFlags) patchAgain(err error) error {
	err = fmt.Errorf("write the patch to %s: %w", f.patch, err)
	if f.stored != "" {
		err = fmt.Errorf("%w; the session has the changes: 'envctl diff %s' prints the patch", err, f.app.shortSession(f.stored))
	}
	return err
}
