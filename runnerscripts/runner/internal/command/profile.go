package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// name is the agent's name in requests.
const name = "command"

// profile is the configuration of an executor.
type profile struct {
	// Type names the kind of executor, for display; empty means "command".
	Type string `json:"type,omitempty"`
	// Command is the program: a string without arguments, or a list with arguments.
	// agent.command may contain it instead.
	Command argv `json:"command,omitempty"`
	// Config is passed to the executor unchanged.
	Config json.RawMessage `json:"config,omitempty"`
	// Lifecycle is one_shot, the default, or persistent.
	Lifecycle lifecycle `json:"lifecycle,omitempty"`
	// AgentsDir is where a host finds agents. It is unsupported: check refuses it.
	AgentsDir string `json:"agents_dir,omitempty"`
}

type lifecycle string

const (
	oneShot    lifecycle = "one_shot"
	persistent lifecycle = "persistent"
)

// argv is a program and its arguments. In JSON, a string is a program without arguments.
type argv []string

func (a *argv) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*a = make(argv, 1)
		return json.Unmarshal(data, &(*a)[0])
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// check decodes the profile, and refuses unsupported settings instead of ignoring them.
func check(s runnerscripts.Session) (profile, error) {
	var p profile
	a := s.Agent
	if len(a.Config) > 0 {
		dec := json.NewDecoder(bytes.NewReader(a.Config))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&p); err != nil {
			return p, agent.Invalid("agent.config of an executor: %v; it may have type, command, config, lifecycle", err)
		}
	}
	p.Type = cmp.Or(strings.TrimSpace(p.Type), name)
	if len(a.Command) > 0 {
		if len(p.Command) > 0 {
			return p, agent.Invalid("name the executor's program in agent.command or in agent.config.command, not in both")
		}
		p.Command = a.Command
	}
	refused := []struct {
		is   bool
		what string
	}{
		{a.Model != "", "agent.model"},
		{a.PermissionMode != "", "agent.permission_mode"},
		{a.MaxTurns != 0, "agent.max_turns"},
		{p.AgentsDir != "", "agent.config.agents_dir"},
	}
	switch {
	case len(p.Command) == 0 || p.Command[0] == "":
		return p, agent.Invalid("agent.command is empty: name the executor's program in it, such as [python3, executor.py]")
	case p.Lifecycle != "" && p.Lifecycle != oneShot && p.Lifecycle != persistent:
		return p, agent.Invalid("give agent.config.lifecycle as %q or %q, not %q", oneShot, persistent, p.Lifecycle)
	}
	for _, r := range refused {
		if r.is {
			return p, agent.Unsupported("leave %s out: an executor has no such option; give it in agent.config.config if this one has", r.what)
		}
	}
	return p, nil
}

// launch returns the command that starts the executor.
func launch(s runnerscripts.Session, p profile) (child.Command, error) {
	env := environment(s)
	args, err := child.Find(p.Command, env)
	if err != nil {
		return child.Command{}, &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailAgentMissing,
			Message: fmt.Sprintf("install the executor in the sandbox, or correct its command in agent.config: %v", err),
		}
	}
	return child.Command{Args: args, Dir: s.Paths.Workspace, Env: env}, nil
}

// environment returns the executor's whole environment.
func environment(s runnerscripts.Session) []string {
	return child.Environ(map[string]string{
		"HOME":                       s.Paths.Home,
		runnerscripts.AgentSessionID: s.ExecutorSession(),
	}, agent.GatewayVariables(s), s.Agent.Env)
}

// schemaVersion is the version of the format of the invocation.
const schemaVersion = "2.2"

// invocation is the first line of input for an executor.
type invocation struct {
	SchemaVersion  string          `json:"schema_version"`
	Mode           string          `json:"mode"` // "start" or "resume"
	SessionID      string          `json:"session_id"`
	Parameters     parameters      `json:"parameters"`
	ProjectDir     string          `json:"project_dir,omitempty"`
	AgentBlueprint *blueprint      `json:"agent_blueprint,omitempty"`
	ExecutorConfig json.RawMessage `json:"executor_config,omitempty"`
}

type parameters struct {
	Prompt string `json:"prompt"`
}

// blueprint describes the agent to the executor.
type blueprint struct {
	Name         string               `json:"name"`
	SystemPrompt string               `json:"system_prompt,omitempty"`
	MCPServers   map[string]mcpServer `json:"mcp_servers,omitempty"`
}

// mcpServer is an MCP server for the executor.
type mcpServer struct {
	Type    string            `json:"type"` // "stdio" or "http"
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // in addition to the executor's own
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// turn is a further prompt for a persistent executor.
type turn struct {
	Type       string     `json:"type"` // "turn"
	Parameters parameters `json:"parameters"`
}

// newInvocation returns the first line for a process. The values of servers are already expanded,
// which is safe because the line is not written to a file.
func newInvocation(s runnerscripts.Session, p profile, servers []runnerscripts.MCPServer, resumed bool, text string) invocation {
	i := invocation{
		SchemaVersion: schemaVersion, Mode: "start", SessionID: s.ExecutorSession(),
		Parameters: parameters{Prompt: text}, ProjectDir: s.Paths.Workspace, ExecutorConfig: p.Config,
	}
	if resumed {
		i.Mode = "resume"
	}
	if s.Agent.SystemPrompt == "" && len(servers) == 0 {
		return i
	}
	i.AgentBlueprint = &blueprint{Name: p.Type, SystemPrompt: s.Agent.SystemPrompt, MCPServers: map[string]mcpServer{}}
	for _, m := range servers {
		server := mcpServer{Type: "http", URL: m.URL, Headers: m.Headers}
		if m.URL == "" {
			server = mcpServer{Type: "stdio", Command: m.Command[0], Args: m.Command[1:], Env: m.Env}
		}
		i.AgentBlueprint.MCPServers[m.Name] = server
	}
	return i
}
