package gemini

import (
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program holds back its standard error until it ends. It writes its debug
// log at once, which goes there too.
const (
	debugLogVariable = "GEMINI_DEBUG_LOG_FILE"
	debugLog         = "/dev/stderr"
)

var (
	// logPattern is a line of the debug log.
	logPattern = agent.Pattern{Expr: `^\[\d{4}-\d\d-\d\dT[0-9:.]+Z\] \[([A-Z]+)\] (.*)`}
	// retryPattern is what the program logs before it asks the model's API again. It may
	// do so for minutes. The groups are the number of the attempt, the status or what else
	// the API answered, and the error where nothing answered.
	retryPattern = agent.Pattern{Expr: `^Attempt (\d+) failed(?: with (.+?))?(?:: (.+?))?\. Retrying (?:after|with backoff\.\.\.) ?(.*)`}
	// mcpPattern tells that an MCP server has failed.
	mcpPattern = agent.Pattern{Expr: `^\[MCP error\] (.*MCP server '([^']+)'.*)`}
)

// unreached is in the error of a request that no API answered.
const unreached = "fetch failed"

// readLog passes on what counts in a line of standard error, and reports whether it
// may be among what the program said when it crashed.
func readLog(out agent.Sink, line []byte) bool {
	m := logPattern.Get().FindSubmatch(line)
	if m == nil {
		return true
	}
	if cause, attempt := retried(m[2]); attempt != "" {
		var status int // stays zero where no status was the answer
		_, _ = fmt.Sscanf(cause, "failed with status %d", &status)
		out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Code: runnerscripts.FailAPI, HTTPStatus: status,
			Message: fmt.Sprintf("the model's API %s; another try follows try %s", cause, attempt),
		})
	}
	if mcp := mcpPattern.Get().FindSubmatch(m[2]); mcp != nil {
		out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level:   "error",
			Message: fmt.Sprintf("correct the MCP server %q of the profile, or what it needs in the sandbox: %s", mcp[2], mcp[1]),
		})
	}
	return string(m[1]) == "ERROR"
}

// retried returns why a request to the model's API failed that is sent again, and the number
// of the attempt; it is empty if a line says something else.
func retried(line []byte) (cause, attempt string) {
	m := retryPattern.Get().FindSubmatch(line)
	if m == nil {
		return "", ""
	}
	answered, said, thrown := string(m[2]), string(m[3]), string(m[4])
	switch {
	case answered != "":
		cause = "failed with " + answered
	case said != "":
		cause = "failed: " + said
	case strings.Contains(thrown, unreached):
		cause = "could not be reached: check its address"
	default:
		cause = "failed: " + thrown
	}
	return cause, string(m[1])
}
