package gemini

import (
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program buffers its standard error until it exits, but writes its debug log at once. So the
// driver directs the debug log to standard error.
const (
	debugLogVariable = "GEMINI_DEBUG_LOG_FILE"
	debugLog         = "/dev/stderr"
)

var (
	// logPattern matches a line of the debug log.
	logPattern = agent.Pattern{Expr: `^\[\d{4}-\d\d-\d\dT[0-9:.]+Z\] \[([A-Z]+)\] (.*)`}
	// retryPattern matches the log line before a retry of the model's API. The program may
	// retry for minutes. The groups are the number of the attempt, the status or other answer
	// of the API, and the error if nothing answered.
	retryPattern = agent.Pattern{Expr: `^Attempt (\d+) failed(?: with (.+?))?(?:: (.+?))?\. Retrying (?:after|with backoff\.\.\.) ?(.*)`}
	// mcpPattern matches the failure of an MCP server.
	mcpPattern = agent.Pattern{Expr: `^\[MCP error\] (.*MCP server '([^']+)'.*)`}
)

// unreached is part of the error of a request that no API answered.
const unreached = "fetch failed"

// readLog reports important lines of standard error, and returns whether the line may be shown
// after a crash.
func readLog(out agent.Sink, line []byte) bool {
	m := logPattern.Get().FindSubmatch(line)
	if m == nil {
		return true
	}
	if cause, attempt := retried(m[2]); attempt != "" {
		var status int // zero if there was no HTTP status
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

// retried returns why a retried request to the model's API failed, and the number of the attempt.
// Both are empty for other lines.
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
