package gemini

import (
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program keeps back what it says on standard error until it ends. Its debug
// log is told at once, and goes there too.
const (
	debugLogVariable = "GEMINI_DEBUG_LOG_FILE"
	debugLog         = "/dev/stderr"
)

var (
	// logPattern is a line of the debug log.
	logPattern = agent.Pattern{Expr: `^\[\d{4}-\d\d-\d\dT[0-9:.]+Z\] \[([A-Z]+)\] (.*)`}
	// retryPattern tells that the model's API has failed and is asked again, which
	// may go on for minutes.
	retryPattern = agent.Pattern{Expr: `^Attempt (\d+) failed with status (\d+)\. Retrying`}
	// mcpPattern tells that an MCP server has failed.
	mcpPattern = agent.Pattern{Expr: `^\[MCP error\] (.*MCP server '([^']+)'.*)`}
)

// readLog passes on what counts in a line of standard error, and reports whether it
// may be among what the program said when it crashed.
func readLog(out agent.Sink, line []byte) bool {
	m := logPattern.Get().FindSubmatch(line)
	if m == nil {
		return true
	}
	if retry := retryPattern.Get().FindSubmatch(m[2]); retry != nil {
		out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level:   "warn",
			Message: fmt.Sprintf("the model's API failed with status %s; another try follows try %s", retry[2], retry[1]),
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
