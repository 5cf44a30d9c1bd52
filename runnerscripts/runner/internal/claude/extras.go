package claude

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// extras watches what the program starts beside itself, and tells once what does
// not work. It is of the reader's goroutine, or used while there is none.
type extras struct {
	told map[string]bool // servers and plugins
	// unsettled says that an MCP server is on its way, or what it lacks is not known.
	unsettled bool
}

// serverStatus is how an MCP server is.
type serverStatus struct {
	Name   string `json:"name"`
	Status string `json:"status"` // "connected", "pending", "failed", "needs-auth", "disabled"
	Error  string `json:"error"`
}

// pluginError is why a plugin is not there.
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

// extrasAt takes what the line that begins a turn says about them.
func (c *conversation) extrasAt(l systemLine) {
	for _, e := range l.PluginErrors {
		c.tellOnce("plugin "+e.Plugin+e.Path, "correct a plugin of the profile: Claude Code could not load it: "+e.Message)
	}
	c.extras.unsettled = slices.ContainsFunc(l.MCPServers, func(s serverStatus) bool {
		return s.Status == serverPending || s.Status == serverFailed || s.Status == serverAuth
	})
	c.askServers()
}

// askServers asks how the MCP servers are: only the answer says what is wrong with
// one.
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
