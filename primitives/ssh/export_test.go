package ssh

import "github.com/agentenv-dev/agentenv/primitives/guest"

// Connection returns the process of a sandbox's ssh command.
func Connection(s *guest.Sandbox) int {
	d, _ := s.Driver().(*driver) // New makes no others
	return d.conn.cmd.Process.Pid
}
