package runnerscripts

import (
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
)

// ScriptError means that a runner script failed. It wraps Failure and Err.
type ScriptError struct {
	// Script is the script's name, for example [ExecuteQuery].
	Script string
	// Status is how the script's process ended. It is zero if the process did not start, or
	// still ran when the error occurred.
	Status primitives.ExitStatus
	// Failure is what the script itself reported; nil for none.
	Failure *ScriptFailure
	// Stderr is the end of the script's standard error, up to 16 KiB, with secrets redacted.
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
		b.WriteString(": " + e.Status.String())
	}
	if s := tail.Of(e.Stderr); s != "" {
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

// QueryError means that a query did not complete. The [TypeQueryFailed] event came before it.
type QueryError struct {
	QueryID string
	// Failure is what the query_failed event says.
	Failure QueryFailed
	// Err is the cause, for errors.Is and errors.As; nil if only Failure is known.
	Err error
}

// Error returns the agent's message and its code.
func (e *QueryError) Error() string {
	return fmt.Sprintf("query failed: %s (%s)", e.Failure.Message, e.Failure.Code)
}

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.Err }
