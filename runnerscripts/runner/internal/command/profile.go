package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// name is the agent's name in requests.
const name = "command"

// profile is the configuration of an executor.
type profile struct {
	executor.Profile
	// AgentsDir is where a host finds agents. It is unsupported: check refuses it.
	AgentsDir string `json:"agents_dir,omitempty"`
}

// check decodes the profile, and refuses unsupported settings instead of ignoring them.
func check(s runnerscripts.Session) (profile, error) {
	var p profile
	a := s.Agent
	if len(a.Config) > 0 {
		dec := json.NewDecoder(bytes.NewReader(a.Config))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&p); err != nil {
			return p, agent.Invalid("agent.config of an executor: %v; it may have type, command, config, lifecycle, files, parameters_schema, output_schema, timeout_seconds, rpc", err)
		}
	}
	p.Type = cmp.Or(strings.TrimSpace(p.Type), name)
	if len(a.Command) > 0 {
		if len(p.Command) > 0 {
			return p, agent.Invalid("agent.command and agent.config.command both name the executor's program; leave one of them out")
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
	if len(p.Command) == 0 || p.Command[0] == "" {
		return p, agent.Invalid("agent.command is empty: name the executor's program in it, such as [python3, executor.py]")
	}
	if err := p.Check(); err != nil {
		return p, agent.Invalid("agent.config: %v", err)
	}
	for _, r := range refused {
		if r.is {
			return p, agent.Unsupported("%s: an executor has no such option; leave it out, or give it in config of its profile, if this one reads it there", r.what)
		}
	}
	return p, nil
}

// launch returns the command that starts the executor.
func launch(s runnerscripts.Session, p profile) (child.Command, error) {
	env := environment(s)
	args, err := child.Find(p.At(filesFolder(s)), env)
	if err != nil {
		return child.Command{}, &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailAgentMissing,
			Message: fmt.Sprintf("the program of the executor cannot be started: %v; install it in the sandbox, or correct the command of its profile, or agent.command", err),
		}
	}
	return child.Command{Args: args, Dir: s.Paths.Workspace, Env: env}, nil
}

// environment returns the executor's whole environment.
func environment(s runnerscripts.Session) []string {
	return child.Environ(map[string]string{
		"HOME":                       s.Paths.Home,
		runnerscripts.AgentSessionID: s.ExecutorSession(),
	}, agent.GatewayVariables(s), rpcVariables(s), s.Agent.Env)
}

// rpcVariables returns the variables with which an executor reaches the JSON-RPC of its host.
func rpcVariables(s runnerscripts.Session) map[string]string {
	if s.Gateway == nil || s.Gateway.Executor == "" {
		return nil
	}
	return map[string]string{
		executor.EnvURL: s.Gateway.URL + runnerscripts.ExecutorPath, executor.EnvToken: s.Gateway.Executor,
	}
}

// filesPath is where the files of an executor are, below the session's home.
const filesPath = ".config/agentenv/executor"

func filesFolder(s runnerscripts.Session) string { return filepath.Join(s.Paths.Home, filesPath) }

// writeFiles writes the files of an executor, and removes those of an earlier one.
func writeFiles(s runnerscripts.Session, p profile) error {
	return agent.WriteProfile(s, agent.Below(filesPath, p.Files))
}

// newInvocation returns the first line for a process. The values of servers are already expanded,
// which is safe because the line is not written to a file.
func newInvocation(s runnerscripts.Session, p profile, servers []runnerscripts.MCPServer, resumed bool, parameters json.RawMessage) executor.Invocation {
	i := executor.Invocation{
		SchemaVersion: executor.SchemaVersion, Mode: executor.Start, SessionID: s.ExecutorSession(),
		Parameters: parameters, ProjectDir: s.Paths.Workspace, ExecutorConfig: p.Config,
	}
	if resumed {
		i.Mode = executor.Resume
	}
	if s.Agent.SystemPrompt == "" && len(servers) == 0 {
		return i
	}
	i.AgentBlueprint = &executor.Blueprint{Name: p.Type, SystemPrompt: s.Agent.SystemPrompt, MCPServers: map[string]executor.MCPServer{}}
	for _, m := range servers {
		server := executor.MCPServer{Type: "http", URL: m.URL, Headers: m.Headers}
		if m.URL == "" {
			server = executor.MCPServer{Type: "stdio", Command: m.Command[0], Args: m.Command[1:], Env: m.Env}
		}
		i.AgentBlueprint.MCPServers[m.Name] = server
	}
	return i
}
