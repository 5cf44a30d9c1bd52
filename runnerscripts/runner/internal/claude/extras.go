package claude

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// extras tracks the MCP servers and plugins of the program, and reports each failure once. It
// is used by the reader's goroutine, or while there is none.
type extras struct {
	told map[string]bool // servers and plugins
	// unsettled says that an MCP server is still starting, or that the cause of its failure is
	// unknown.
	unsettled bool
}

// serverStatus is the status of an MCP server.
type serverStatus struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "connected", "pending", "failed", "needs-auth", "disabled"
	Error  string `json:"error"`
}

// pluginError says why a plugin is missing.
type pluginError struct {
	Plugin  string `json:"plugin"`
	Message string `json:"message"`
	Path    string `json:"path"`
}

const (
	serverPending = "pending"
	serverFailed  = "failed"
	serverAuth    = "needs-auth"
)

// extrasAt handles the status of extras in the line that begins a turn.
func (c *conversation) extrasAt(l systemLine) {
	for _, e := range l.PluginErrors {
		c.tellOnce("plugin "+e.Plugin+e.Path, "correct a plugin of the profile: Claude Code could not load it: "+e.Message)
	}
	c.extras.unsettled = slices.ContainsFunc(l.MCPServers, func(s serverStatus) bool {
		return s.Status == serverPending || s.Status == serverFailed || s.Status == serverAuth
	})
	c.askServers()
}

// askServers asks for the status of the MCP servers: only the reply has their errors.
func (c *conversation) askServers() {
	if !c.extras.unsettled {
		return
	}
	c.requestLater(map[string]any{"subtype": "mcp_status"}, func(raw json.RawMessage) {
		var reply struct {
			Servers []serverStatus `json:"mcpServers"`
		}
		if json.Unmarshal(raw, &reply) != nil {
			return
		}
		c.extras.unsettled = false
		for _, s := range reply.Servers {
			switch s.Status {
			case serverPending:
				c.extras.unsettled = true
			case serverFailed:
				c.tellOnce("server "+s.Name, fmt.Sprintf(
					"check the command or the URL of the MCP server %q: it did not start, and the agent does without it: %s", s.Name, s.Error))
			case serverAuth:
				c.tellOnce("server "+s.Name, fmt.Sprintf(
					"give the MCP server %q headers that it accepts: it refuses to work without, and the agent does without it", s.Name))
			}
		}
	})
}

func (c *conversation) tellOnce(what, message string) {
	if c.extras.told[what] {
		return
	}
	if c.extras.told == nil {
		c.extras.told = map[string]bool{}
	}
	c.extras.told[what] = true
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{Level: "error", Message: message})
}
