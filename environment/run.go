package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/internal/boundedmap"
	"github.com/agentenv-dev/agentenv/internal/lastfailure"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Usage counts the tokens and the cost of a query.
type Usage = runnerscripts.Usage

// Result is the result of a prompt.
type Result struct {
	// Text is what the agent said after its last tool call, or before it if it said nothing
	// after it.
	Text string
	// ResultData is the result as JSON: that of Query.OutputSchema, or of an executor. Nil means that
	// there is only Text.
	ResultData json.RawMessage
	// StopReason is why the agent stopped; empty if the query failed.
	StopReason runnerscripts.StopReason
	// Usage is what the query used; zero if the agent does not report it.
	Usage Usage
	// Duration is the time from the prompt to the end.
	Duration time.Duration
	// Rejected has the titles of the tool calls that were rejected.
	Rejected []string
	// Changes are those of [Environment.Changes] after the query, so they count from the
	// beginning of the workspace. They are read from the files, not from watch events, so none
	// is late. They are nil if the query failed, or if the sandbox has no baseline.
	Changes []Change
}

// Run sends the agent a prompt and returns the result. It is [Environment.ExecuteQuery] for
// programs that need no events.
//
// A failed query is a [*QueryError]. A query that [Environment.Interrupt] stopped is no error:
// its Result.StopReason is runnerscripts.StopCancelled. When ctx is done, Run interrupts the
// query and returns the cause of ctx. If the agent then reported a failure of the model API that
// it had not overcome, the error also wraps that [*runnerscripts.ScriptFailure]. Other errors
// are those of ExecuteQuery. On an error the Result holds what is known.
func (e *Environment) Run(ctx context.Context, prompt string) (Result, error) {
	return e.RunQuery(ctx, Query{Prompt: prompt})
}

// RunQuery is [Environment.Run] for a prompt with all that a [Query] can have.
func (e *Environment) RunQuery(ctx context.Context, q Query) (Result, error) {
	f := resultFold{asked: boundedmap.Map[string]{Max: maxRejected}}
	begin := time.Now()
	for ev, err := range e.ExecuteQuery(ctx, q) {
		if err != nil {
			f.end(begin)
			if ctx.Err() != nil {
				err = f.failure.Explain(err)
			}
			return f.Result, err
		}
		f.add(ev)
	}
	f.end(begin)
	var err error
	if f.Changes, err = e.Changes(ctx); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return f.Result, err
	}
	return f.Result, nil
}

// resultFold builds a Result from events.
type resultFold struct {
	Result
	said    query.Said
	titles  int                    // size of Rejected in bytes
	asked   boundedmap.Map[string] // titles, by the ID of the permission request
	failure lastfailure.Keeper
}

// maxRejected limits the titles of rejected tool calls in a Result, in bytes. Each counts rejectedSize more.
const (
	maxRejected  = 1 << 20
	rejectedSize = 128
)

// add adds one event.
func (f *resultFold) add(ev runnerscripts.Event) {
	f.failure.Add(ev)
	if ev.ConversationID != runnerscripts.MainConversation && ev.ConversationID != "" {
		f.permission(ev)
		return
	}
	switch v := ev.Value().(type) {
	case *runnerscripts.ContentChunk, *runnerscripts.ToolCall:
		f.said.Add(ev)
	case *runnerscripts.QueryCompleted:
		f.StopReason, f.Usage, f.ResultData = v.StopReason, v.Usage, v.ResultData
	case *runnerscripts.QueryFailed:
		f.Usage = v.Usage
	default:
		f.permission(ev)
	}
}

// permission collects the titles of rejected requests.
func (f *resultFold) permission(ev runnerscripts.Event) {
	switch v := ev.Value().(type) {
	case *runnerscripts.PermissionRequest:
		f.asked.Put(v.ID, v.ToolCall.Title, len(v.ToolCall.Title))
	case *runnerscripts.PermissionResolved:
		title, known := f.asked.Get(v.ID)
		if known && v.Kind != "" && !v.Kind.Allows() && f.titles+rejectedSize+len(title) <= maxRejected {
			f.titles += rejectedSize + len(title)
			f.Rejected = append(f.Rejected, title)
		}
		f.asked.Delete(v.ID)
	}
}

// end fills in the duration and the text.
func (f *resultFold) end(begin time.Time) {
	f.Duration = time.Since(begin)
	f.Text = f.said.Text()
}

// ExitError means that a command of [Environment.Exec] did not succeed.
type ExitError struct {
	Args   []string
	Status primitives.ExitStatus
	// Output is what Exec returned.
	Output string
}

// Error returns how the command ended, with the end of its output.
func (e *ExitError) Error() string {
	text := strings.Join(e.Args, " ") + ": " + e.Status.String()
	if s := tail.Of(e.Output); s != "" {
		text += "; its output ends with: " + s
	}
	return text
}

// Exec runs a command in the workspace and returns its standard output, followed by its standard
// error. The command runs as the agent's user, without the agent's variables but with those of
// [Environment.GatewayEnv]. If it does not exit with status 0, the error is an [*ExitError]; if
// the program does not exist, it is primitives.ErrCommandNotFound. Exec keeps 10 MiB of each
// stream, and a last line says how much was left out. When ctx is done, Exec ends the command
// and returns the cause of ctx. For input, streams, terminals and more use
// [Environment.Primitive].
func (e *Environment) Exec(ctx context.Context, args ...string) (string, error) {
	if len(args) == 0 {
		return "", fmt.Errorf("exec: %w: there is no command", fs.ErrInvalid)
	}
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	r, err := primitives.Run(ctx, e.prim, primitives.Command{Args: args, Env: e.GatewayEnv()}, primitives.RunOptions{})
	output := string(r.Stdout) + string(r.Stderr)
	if r.Truncated() {
		output += fmt.Sprintf("\n[%d bytes were left out]\n", r.StdoutDropped+r.StderrDropped)
	}
	switch {
	case ctx.Err() != nil:
		return output, fmt.Errorf("exec: %w", context.Cause(ctx))
	case err != nil:
		return output, fmt.Errorf("exec: %w", err)
	case !r.Status.Success():
		return output, &ExitError{Args: args, Status: r.Status, Output: output}
	}
	return output, nil
}
