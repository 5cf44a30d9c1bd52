package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/claude"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/codex"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/command"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/gemini"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/opencode"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/schema"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/script"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // the result says why
	exitUsage  = 2
	// exitTerminated is the status of a guest that a signal ended before the host did: the status
	// of SIGTERM in a shell.
	exitTerminated = 128 + 15
)

const usage = `envrunner works inside a sandbox. Its commands speak JSON lines on standard input
and output; they are meant for programs.

  envrunner setup-session     prepare a session: one request in, one result out
  envrunner execute-query     run the agent: request and control lines in, events out
  envrunner read-transcript   read the agent's history: one request in, one result out
  envrunner recipe [AGENT]    print what the agent, or each one, can do and needs in
                              a sandbox, as a result
  envrunner guest             serve a sandbox of this machine over standard input and
                              output, until the host closes them; see guest --help
  envrunner execute-query --input DIR
                              the same without standard input, for one that outlives
                              its host: the lines come from feeds
  envrunner feed DIR          pass standard input on to an execute-query
  envrunner supervise DIR     look after a durable command; called by guest
  envrunner version           print the version
  envrunner --schema          print the JSON Schema of requests and events
  envrunner --help            print this
`

// app is one execution of envrunner.
type app struct {
	stdin  io.ReadCloser
	stdout *runnerscripts.Encoder
	stderr io.Writer
	agents map[string]agent.Driver
}

// run runs envrunner with args and returns the exit status. It closes stdin to end a waiting read.
func run(ctx context.Context, stdin io.ReadCloser, stdout, stderr io.Writer, args []string) int {
	a := &app{stdin: stdin, stdout: runnerscripts.NewEncoder(stdout), stderr: stderr}
	a.agents = map[string]agent.Driver{
		"acp":      acp.Driver{},
		"claude":   claude.Driver{},
		"codex":    codex.Driver{},
		"command":  command.Driver{},
		"gemini":   gemini.Driver{},
		"opencode": opencode.Driver{},
		"script":   script.New(script.Config{Print: a.stdout.WriteLine}),
	}
	if len(args) > 0 && args[0] == "guest" {
		return serveGuest(ctx, stdin, stdout, stderr, args[1:])
	}
	spread()
	switch {
	case len(args) == 3 && args[0] == runnerscripts.ExecuteQuery && args[1] == "--input":
		return a.fedScript(ctx, args[2])
	case len(args) == 2 && args[0] == "feed":
		return a.feed(ctx, args[1])
	case len(args) == 2 && args[0] == "supervise":
		return local.Supervise(ctx, args[1])
	case len(args) == 2 && args[0] == runnerscripts.PrintRecipe:
		return a.printRecipe(args[1])
	case len(args) == 1 && args[0] == runnerscripts.PrintRecipe:
		return a.printRecipes()
	case len(args) != 1:
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case runnerscripts.SetupSession, runnerscripts.ExecuteQuery, runnerscripts.ReadTranscript:
		return a.script(ctx, args[0])
	case "version", "--version":
		fmt.Fprintln(stdout, "envrunner", version(), runtime.GOOS+"/"+runtime.GOARCH)
	case "schema", "--schema":
		return printSchema(stdout, stderr)
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "envrunner: unknown command %q\n\n%s", args[0], usage)
		return exitUsage
	}
	return exitOK
}

// fedScript runs execute-query with input from feeds.
func (a *app) fedScript(ctx context.Context, dir string) int {
	in, err := listen(ctx, dir, idleTimeout)
	if err != nil {
		return a.fail(err)
	}
	defer in.Close() // a second Close is harmless
	a.stdin = in
	return a.script(ctx, runnerscripts.ExecuteQuery)
}

func (a *app) feed(ctx context.Context, dir string) int {
	if err := feed(ctx, a.stdin, dir); err != nil {
		fmt.Fprintln(a.stderr, "envrunner:", err)
		return exitFailed
	}
	return exitOK
}

// script runs one of the runner scripts.
func (a *app) script(ctx context.Context, name string) int {
	do := map[string]func(context.Context) error{
		runnerscripts.SetupSession:   a.setupSession,
		runnerscripts.ExecuteQuery:   a.executeQuery,
		runnerscripts.ReadTranscript: a.readTranscript,
	}[name]
	// A read of the input does not return when ctx is done, so close the input.
	defer context.AfterFunc(ctx, func() { a.stdin.Close() })()
	err := do(ctx)
	if crash, ok := errors.AsType[script.CrashError](err); ok {
		return int(crash)
	}
	if err != nil {
		return a.fail(err)
	}
	return exitOK
}

func printSchema(stdout, stderr io.Writer) int {
	raw, err := schema.JSON()
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%s\n", raw)
	}
	if err != nil {
		fmt.Fprintln(stderr, "envrunner:", err)
		return exitFailed
	}
	return exitOK
}

// finish prints the result of a successful script.
func (a *app) finish(data any) error {
	raw, err := marshal(data)
	if err != nil {
		return err
	}
	return a.stdout.Encode(runnerscripts.Result{Type: runnerscripts.TypeResult, OK: true, Data: raw})
}

// fail prints the result of a failed script and returns the exit status.
func (a *app) fail(err error) int {
	res := runnerscripts.Result{Type: runnerscripts.TypeResult, Error: failure(err)}
	if werr := a.stdout.Encode(res); werr != nil {
		fmt.Fprintf(a.stderr, "envrunner: %v (and the result could not be written: %v)\n", err, werr)
	}
	return exitFailed
}

// failure returns any error as a ScriptFailure.
func failure(err error) *runnerscripts.ScriptFailure {
	if f, ok := errors.AsType[*runnerscripts.ScriptFailure](err); ok {
		return f
	}
	return &runnerscripts.ScriptFailure{Code: runnerscripts.FailInternal, Message: err.Error()}
}

// guarded calls f and returns its panic as an error: a panic in a driver must not suppress the
// result line.
func (a *app) guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(a.stderr, "envrunner: panic: %v\n%s", p, debug.Stack())
			err = &runnerscripts.ScriptFailure{
				Code:    runnerscripts.FailInternal,
				Message: fmt.Sprintf("report this bug of the runner: panic: %v", p),
			}
		}
	}()
	return f()
}

// buildVersion is set by bundle, because its builds carry no other version.
var buildVersion string

func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
