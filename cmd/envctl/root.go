package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

// Exit statuses beside those that exec passes on from its command.
const (
	exitOK          = 0
	exitFailure     = 1   // the agent or the sandbox failed
	exitUsage       = 2   // the command line or the configuration makes no sense
	exitTimeout     = 124 // --timeout has passed
	exitExecFailed  = 125 // exec: the sandbox failed, not the command
	exitNotExecuted = 126 // exec: the command is there and cannot be run
	exitNotFound    = 127 // exec: no such command
	exitInterrupted = 130 // 128 + SIGINT; other signals likewise
	exitNoReader    = 141 // 128 + SIGPIPE, as a shell shows it
)

// app is one run of the command line: its streams and little else.
type app struct {
	in       io.Reader
	out, err *term.Output
	status   *term.Status
	server   string // the address of the server to use; empty for this machine
	// serverFlag is how a command that a message advises begins, so that it uses the same server.
	serverFlag string
	// sandboxServer is server if the command works with sandboxes, and not with sessions.
	sandboxServer string
	forceExit     <-chan struct{} // closed when an interrupted run must not wait any more; may be nil
}

// Execute runs envctl with the given arguments (without the program's name) and
// streams, and returns its exit status.
func Execute(ctx context.Context, in io.Reader, out, errOut io.Writer, args []string) int {
	return newApp(in, out, errOut).execute(ctx, args)
}

func newApp(in io.Reader, out, errOut io.Writer) *app {
	a := &app{in: in, out: term.NewOutput(out), err: term.NewOutput(errOut)}
	a.status = term.NewStatus(a.err)
	if a.status.On {
		a.out.Status, a.err.Status = a.status, a.status
	}
	return a
}

func (a *app) execute(ctx context.Context, args []string) int {
	root := a.newRootCmd()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	defer func() { _ = a.err.End(nil) }() // nothing is left to report to
	strictDefaults(root)
	err := root.ExecuteContext(ctx)
	a.status.Off()
	if ended := a.out.End(a.forceExit); err == nil || errors.Is(ended, term.ErrNoReader) {
		err = ended
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, term.ErrNoReader) {
		// As for a program that SIGPIPE has killed: no reader is left for an error.
		return exitNoReader
	}
	var status *exitError
	if errors.As(err, &status) {
		if status.err != nil {
			fmt.Fprintf(a.err, "envctl: %s\n", inFlags.Replace(status.err.Error()))
		}
		return status.code
	}
	if ctx.Err() != nil {
		fmt.Fprintf(a.err, "envctl: %s\n", interruption(ctx).Error())
		if err = besides(err, context.Canceled); err != nil {
			fmt.Fprintf(a.err, "envctl: %s\n", err.Error())
		}
		return interruption(ctx).code()
	}
	fmt.Fprintf(a.err, "envctl: %s\n", inFlags.Replace(err.Error()))
	if errors.Is(err, environment.ErrConfig) {
		return exitUsage
	}
	return exitFailure
}

// inFlags replaces advice about fields of environment.Config by advice about flags.
var inFlags = strings.NewReplacer(
	"set Config.Trust", "give --trust",
	"name it in Config.Agent", "name it, with --agent or in the configuration",
	"name one in Config.Agent", "name one with --agent or in the configuration",
	"install it with InstallAgent", "install it with 'envctl agents install'",
	"; List shows those there are", "; 'envctl ls' shows those there are",
)

// besides returns the parts of joined errors that are not known.
func besides(err, known error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var rest []error
		for _, e := range joined.Unwrap() {
			rest = append(rest, besides(e, known))
		}
		return errors.Join(rest...)
	}
	if errors.Is(err, known) {
		return nil
	}
	return err
}

// exitError sets the exit status. If err is nil, nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef returns an error about how envctl was called.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

func (a *app) newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "envctl",
		Short: "Run coding agents in sandboxes",
		Long: `envctl runs coding agents in sandboxes and looks into them.

  envctl run "Say hello"                        the scripted demo agent, no key, no network
  envctl run --agent claude --folder . --apply "Fix the test"

Exit status: 0 when it worked, 1 when the agent or the sandbox failed, 2 when the
command line or the configuration makes no sense, 124 when --timeout ended it, 130
when interrupted, 143 after SIGTERM, 141 when the reader of standard output went away,
as 'head' does. exec returns its command's status, or 125 to 127 as timeout(1) and
env(1) do.

An ID may be cut short, as long as it fits only one sandbox.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       currentVersion().String(),
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if asJSON := cmd.Flags().Lookup("json"); asJSON != nil && asJSON.Changed {
				a.status.Off()
			}
			a.status.Set(takesLong(cmd.CommandPath()), time.Now())
			a.findServer(cmd)
			return errors.Join(a.refuseServer(cmd), refuseEmpty(cmd, args))
		},
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version") // without -v, which commands have for --verbose
	root.PersistentFlags().StringVar(&a.server, "server", "", "address of an 'envctl serve' that has the sessions and sandboxes (default $AGENTENV_SERVER, else this machine)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; %s", err, flagMeant(cmd, err))
	})
	root.AddCommand(
		a.newRunnerCmd(), a.newMCPCmd(),
		a.newRunCmd(), a.newACPCmd(), a.newAttachCmd(), a.newAnswerCmd(), a.newCreateCmd(), a.newExecCmd(), a.newCopyCmd(), a.newPortCmd(), a.newListCmd(), a.newWatchCmd(),
		a.newDiffCmd(), a.newFetchCmd(), a.newMoveCmd(), a.newServeCmd(), a.newTranscriptCmd(), a.newLogsCmd(), a.newSessionsCmd(), a.newLogCmd(), a.newRewindCmd(), a.newForkCmd(), a.newCompareCmd(), a.newStatsCmd(), a.newRemoveCmd(), a.newGCCmd(),
		a.newAgentsCmd(), a.newProfilesCmd(), a.newExecutorsCmd(), a.newImageCmd(), a.newCredentialsCmd(), a.newPermissionsCmd(), a.newDoctorCmd(), a.newVersionCmd(),
	)
	checkArgs(root.Commands())
	return root
}

// takesLong returns the status of a command that may take long and shows no other status.
func takesLong(command string) string {
	return map[string]string{
		"envctl agents install": "installing the agent",
		"envctl answer":         "connecting to the sandbox",
		"envctl attach":         "connecting to the sandbox",
		"envctl cp":             "copying",
		"envctl compare":        "comparing the sessions",
		"envctl create":         "making the sandbox",
		"envctl diff":           "comparing the workspace",
		"envctl doctor":         "checking; the first time the runner is built",
		"envctl fetch":          "fetching the branch",
		"envctl fork":           "copying the session",
		"envctl gc":             "looking for garbage",
		"envctl image build":    "building the image",
		"envctl image ls":       "looking for images",
		"envctl image rm":       "removing images",
		"envctl ls":             "looking for sandboxes",
		"envctl move":           "moving the session",
		"envctl port":           "connecting to the sandbox",
		"envctl rewind":         "returning to the checkpoint",
		"envctl rm":             "ending the sandbox",
		"envctl run":            "starting the sandbox",
		"envctl runner":         "opening the sessions",
		"envctl serve":          "opening the sessions",
		"envctl stats":          "measuring",
		"envctl transcript":     "reading the conversation",
	}[command]
}

// named are the flags whose value names a place, a user, a thing or a rule. The value must not
// be empty; see refuseEmpty.
var named = []string{
	"server", "sandbox", "to", "config", "image", "base", "network", "max-size", "memory", "user", "workdir",
	"folder", "git", "in", "tar", "branch", "patch", "pattern", "agent", "model", "mode", "profile", "name", "id-file", "listen", "scenario", "permission", "log-level", "status", "request", "budget", "record", "replay",
	"token-file", "tls-cert", "tls-key", "role", "database", "advertise", "coordinator", "tags", "agents", "output-schema",
}

// refuseEmpty rejects an empty value of a named flag. Like a missing flag, it would run the
// command elsewhere, or as another user, than the caller meant.
func refuseEmpty(cmd *cobra.Command, _ []string) error {
	for _, name := range named {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return usagef("--%s is empty, perhaps from a variable that is not set; give it a value, or leave it out; see '%s --help'",
				name, cmd.CommandPath())
		}
	}
	return nil
}

// strictDefaults makes the commands that cobra adds reject unknown arguments, as all others do.
// Call it after the streams are set: the completion command keeps them.
func strictDefaults(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.RunE = func(_ *cobra.Command, args []string) error {
				about, unknown, err := root.Find(args)
				if err != nil {
					return err
				}
				if err := knownCommand(about, unknown); err != nil {
					return err
				}
				about.InitDefaultHelpFlag() // help shows it
				about.InitDefaultVersionFlag()
				return about.Help()
			}
		case "completion":
			checkArgs(c.Commands())
			c.Args, c.RunE = knownCommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// checkArgs makes a wrong number of arguments of any command a usage error.
func checkArgs(commands []*cobra.Command) {
	for _, c := range commands {
		checkArgs(c.Commands())
		c.Args = usageArgs(c.Args)
	}
}

// usageArgs makes a wrong number of arguments a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if check(cmd, args) != nil {
			return usagef("call it as '%s'; see '%s --help'", cmd.UseLine(), cmd.CommandPath())
		}
		return nil
	}
}

// knownCommand rejects an unknown command, and suggests similar ones.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	advice := fmt.Sprintf("see '%s --help'", cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		advice = "did you mean " + strings.Join(similar, " or ") + "?"
	}
	return usagef("unknown command %q; %s", args[0], advice)
}
