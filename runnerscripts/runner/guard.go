package main

import (
	"os"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// guestVariable is set in the environment of every command of a guest.
const guestVariable = "AGENTENV_GUEST"

// mustHide reports whether this program holds data that commands of the same user must not get: the
// guest has the connection to the host, and the scripts and the feed have secrets.
//
// Without a guest, processes of the same user can read the host's program anyway. The host must
// then read the environment of the scripts to find orphaned ones, and always that of the supervisor
// of a durable command. The supervisor holds only data that lies in files of the same user.
func mustHide(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "guest":
		return true
	case "feed", runnerscripts.SetupSession, runnerscripts.ExecuteQuery, runnerscripts.ReadTranscript:
		return os.Getenv(guestVariable) != ""
	}
	return false
}
