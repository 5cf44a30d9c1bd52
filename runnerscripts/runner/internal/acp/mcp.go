package acp

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// mcpServers returns the configured MCP servers in ACP's form. It reports and omits servers
// whose program is missing, because some agents fail to create a session with one.
func (c *conversation) mcpServers(caps acpsdk.McpCapabilities, env []string) ([]acpsdk.McpServer, error) {
	servers := []acpsdk.McpServer{} // ACP requires a list, not null
	for _, m := range c.cfg.MCPServers {
		if m.URL != "" {
			if !caps.Http {
				return nil, agent.Unsupported("leave the MCP server %q out of the profile: %s takes none that have a url", m.Name, c.cfg.Program)
			}
			servers = append(servers, acpsdk.McpServer{Http: &acpsdk.McpServerHttpInline{
				Type: "http", Name: m.Name, Url: m.URL, Headers: pairs(m.Headers, func(k, v string) acpsdk.HttpHeader {
					return acpsdk.HttpHeader{Name: k, Value: v}
				}),
			}})
			continue
		}
		argv, err := child.Find(absolute(m.Command, c.cfg.Workspace), env)
		if err != nil {
			c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
				Level: "error", Message: fmt.Sprintf("install the MCP server %q, or correct its command: %v", m.Name, err),
			})
			continue
		}
		servers = append(servers, acpsdk.McpServer{Stdio: &acpsdk.McpServerStdio{
			Name: m.Name, Command: argv[0], Args: argv[1:], Env: pairs(m.Env, func(k, v string) acpsdk.EnvVariable {
				return acpsdk.EnvVariable{Name: k, Value: v}
			}),
		}})
	}
	return servers, nil
}

// absolute returns argv with the program's path resolved against dir.
func absolute(argv []string, dir string) []string {
	if !strings.Contains(argv[0], "/") || filepath.IsAbs(argv[0]) {
		return argv
	}
	return append([]string{filepath.Join(dir, argv[0])}, argv[1:]...)
}

// pairs converts a map to a list sorted by key.
func pairs[T any](values map[string]string, pair func(key, value string) T) []T {
	list := []T{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		list = append(list, pair(key, values[key]))
	}
	return list
}
