package environment

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Errors beside those of package primitives.
var (
	// ErrBusy: a query is running, and an environment runs one at a time.
	ErrBusy = errors.New("a query is running; wait for its end or interrupt it")
	// ErrClosed: the environment was closed.
	ErrClosed = errors.New("environment is closed")
	// ErrNoQuery: no running agent can take the call.
	ErrNoQuery = errors.New("no query is running")
	// ErrNotPending: the permission request was answered or withdrawn, or never existed.
	ErrNotPending = errors.New("permission request is not waiting for an answer")
	// ErrConfig: the configuration is invalid. The message says where and what to change.
	ErrConfig = configfile.ErrInvalid
	// ErrTrust: a session would continue in a sandbox that is less isolated from this machine,
	// and Config.Trust is not set.
	ErrTrust = errors.New("the session is not trusted there")
	// ErrGit: git is not installed on this machine, or it failed.
	ErrGit = hostgit.ErrFailed
	// ErrBranch: a branch cannot receive the commits of a sandbox. The message says why.
	ErrBranch = hostgit.ErrBranch
	// ErrMerging: the repository of a folder is in a merge, so its history is not copied.
	ErrMerging = hostgit.ErrMerging
)

// ScriptError means that a runner script failed. It wraps Failure and Err.
type ScriptError struct {
	// Script is the script's name, for example runnerscripts.ExecuteQuery.
	Script string
	// Status is how the script's process ended. It is zero if the process did not start, or
	// still ran when the error occurred.
	Status primitives.ExitStatus
	// Failure is what the script itself reported; nil for none.
	Failure *runnerscripts.ScriptFailure
	// Stderr is the end of the script's standard error, up to 16 KiB, with the secrets of the
	// configuration redacted.
	Stderr string
	// Err is any other error: the script broke the protocol, or could not be started. It is nil
	// if Status or Failure says what happened.
	Err error
}

// Error says what happened, with the last lines of standard error.
func (e *ScriptError) Error() string {
	var b strings.Builder
	b.WriteString(e.Script)
	switch {
	case e.Failure != nil:
		fmt.Fprintf(&b, ": %s (%s)", e.Failure.Message, e.Failure.Code)
	case e.Err != nil:
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	// A script that reports its failure exits with 1, so the status adds nothing.
	told := e.Failure != nil && e.Status.Reason == primitives.ReasonExited
	if e.Status.Reason != "" && !e.Status.Success() && !told {
		b.WriteString(": " + describe(e.Status))
	}
	if s := redact.LastLines(e.Stderr); s != "" {
		b.WriteString("; standard error ends with: " + s)
	}
	return b.String()
}

// Unwrap returns the Failure and Err.
func (e *ScriptError) Unwrap() []error {
	var errs []error
	if e.Failure != nil {
		errs = append(errs, e.Failure)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// QueryError means that a query did not complete. The runnerscripts.TypeQueryFailed event came
// before it. From [Environment.ExecuteQuery] it means that the runner works and the agent
// failed.
type QueryError struct {
	QueryID string
	// Failure is what the query_failed event says.
	Failure runnerscripts.QueryFailed
	// Err is the cause, for errors.Is and errors.As; nil if only Failure is known.
	Err error
}

// Error returns the agent's message and its code.
func (e *QueryError) Error() string {
	return fmt.Sprintf("query failed: %s (%s)", e.Failure.Message, e.Failure.Code)
}

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.Err }

// SourceError says which source of the workspace could not be placed.
type SourceError struct {
	// Index is its place in Config.Workspace, from 0.
	Index int
	// Kind is "files", "folder", "git" or "tar", and Name its path or URL,
	// without credentials.
	Kind, Name string
	Err        error

	config string // the configuration file that names it; empty for none
}

// Error names the source and says what happened.
func (e *SourceError) Error() string {
	where := ""
	if e.config != "" {
		where = e.config + ": "
	}
	return fmt.Sprintf("%sworkspace[%d]: %s %q: %v", where, e.Index, e.Kind, e.Name, e.Err)
}

// Unwrap returns what happened.
func (e *SourceError) Unwrap() error { return e.Err }

func describe(s primitives.ExitStatus) string {
	switch s.Reason {
	case primitives.ReasonExited:
		return fmt.Sprintf("exited with code %d", s.Code)
	case primitives.ReasonSignaled:
		return "ended by signal " + string(s.Signal)
	case primitives.ReasonOOM:
		return "ended because the sandbox ran out of memory; give it more"
	default:
		return "ended: " + string(s.Reason)
	}
}
