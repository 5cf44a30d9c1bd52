package agent

import (
	"fmt"
	"net/http"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Invalid returns a FailInvalidRequest, whose message says what to do about it.
func Invalid(format string, args ...any) error {
	return fail(runnerscripts.FailInvalidRequest, format, args)
}

// Unsupported returns a FailUnsupported: drivers refuse unsupported features by name instead of
// ignoring them.
func Unsupported(format string, args ...any) error {
	return fail(runnerscripts.FailUnsupported, format, args)
}

// Failed returns a FailAgent: the agent has crashed, or its output is invalid.
func Failed(format string, args ...any) error { return fail(runnerscripts.FailAgent, format, args) }

// FailedQuery returns a FailQuery: the agent ended the query with an error, and the
// conversation continues.
func FailedQuery(format string, args ...any) error {
	return fail(runnerscripts.FailQuery, format, args)
}

// APIFailure returns a FailAPI with the agent's message and advice for the HTTP status of the
// model's API; zero means no answer or an unknown status. key says how the agent gets a key for
// the API. A non-empty advice replaces the default one.
func APIFailure(status int, said, key, advice string) error {
	fact := said
	if status != 0 {
		fact = fmt.Sprintf("the model's API answered with status %d: %s", status, said)
	}
	if advice == "" {
		advice = apiAdvice(status, key)
	}
	return &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, HTTPStatus: status, Message: fact + "; " + advice}
}

// statusOverloaded is a status that only Anthropic uses.
const statusOverloaded = 529

func apiAdvice(status int, key string) string {
	switch {
	case status == 0:
		return "check that the address of the model's API can be reached from the sandbox, and send the prompt again"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "give the agent a key that the model's API accepts, for example " + key
	case status == http.StatusNotFound:
		return "check agent.model and the address of the model's API"
	case status == http.StatusTooManyRequests, status == statusOverloaded, status == http.StatusServiceUnavailable:
		return "send the prompt again later: the model's API is over its limits"
	case status >= http.StatusInternalServerError, status == http.StatusRequestTimeout:
		return "send the prompt again later: the model's API has failed"
	default:
		return "change what the message names: the model's API refused the request"
	}
}

func fail(code runnerscripts.FailureCode, format string, args []any) error {
	return &runnerscripts.ScriptFailure{Code: code, Message: fmt.Sprintf(format, args...)}
}
