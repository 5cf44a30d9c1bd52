package claude

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// command is what to start.
type command struct {
	child.Command
	// resumes says that there is a conversation to go on with.
	resumes bool
}

// interrupt asks the program to stop its turn. The reply says nothing that the end
// of the query does not; a program that has ended ends the query, too.
func interrupt(p *child.Process) {
	body := json.RawMessage(`{"subtype":"interrupt"}`)
	_ = p.Send(controlLine{Type: "control_request", RequestID: agent.NewUUID(), Request: body})
}

// removeSocket removes what a killed program leaves behind.
func removeSocket(pid int) { _ = os.Remove(fallbackSocket(pid)) }

// fallbackSocket is where the program listens for others of its kind if the path
// of the session is too long for a socket: in a folder that all sessions share,
// and a killed program leaves it there.
func fallbackSocket(pid int) string {
	return fmt.Sprintf("/tmp/cc-socks-%d/%d.sock", os.Getuid(), pid)
}
