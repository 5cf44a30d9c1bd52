package agent

import (
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Invalid returns a FailInvalidRequest, whose message says what to do about it.
func Invalid(format string, args ...any) error {
	return fail(runnerscripts.FailInvalidRequest, format, args)
}

// Unsupported returns a FailUnsupported: what an agent cannot do is refused by
// name, never ignored.
func Unsupported(format string, args ...any) error {
	return fail(runnerscripts.FailUnsupported, format, args)
}

// Failed returns a FailAgent: the agent has crashed, or cannot be understood.
func Failed(format string, args ...any) error { return fail(runnerscripts.FailAgent, format, args) }

// FailedQuery returns a FailQuery: the agent itself has ended the query with an error.
// The conversation goes on.
func FailedQuery(format string, args ...any) error {
	return fail(runnerscripts.FailQuery, format, args)
}

func fail(code runnerscripts.FailureCode, format string, args []any) error {
	return &runnerscripts.ScriptFailure{Code: code, Message: fmt.Sprintf(format, args...)}
}
