package claude

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// command is a command to start.
type command struct {
	child.Command
	// resumes says that the command resumes a conversation.
	resumes bool
}

// interrupt asks the program to stop its turn. The reply is ignored: the end of the query, or
// of the program, says enough.
func interrupt(p *child.Process) {
	body := json.RawMessage(`{"subtype":"interrupt"}`)
	_ = p.Send(controlLine{Type: "control_request", RequestID: agent.NewUUID(), Request: body})
}

// removeSocket removes the orphaned socket of a killed program.
func removeSocket(pid int) { _ = os.Remove(fallbackSocket(pid)) }

// fallbackSocket returns the path at which the program listens for its peers if the session's
// path is too long for a socket. It is in a folder shared by all sessions, and a killed program
// does not remove it.
func fallbackSocket(pid int) string {
	return fmt.Sprintf("/tmp/cc-socks-%d/%d.sock", os.Getuid(), pid)
}
