package environment

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"

	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Meter counts what a session uses; see SessionState.CountTo.
type Meter = gateway.Meter

// Delegation names other agents that an agent may start, each in a sandbox of its own. The zero value names none.
type Delegation struct {
	// Agents are the configurations of these agents, by the names under which the agent knows them. A name has up to 63
	// letters, digits, '_', '.' and '-'.
	Agents map[string]Delegate `json:"agents,omitempty"`
	// Depth is how many generations there may be: with 2 the started agents may start others, from the same names. Zero means
	// DefaultDepth.
	Depth int `json:"depth,omitempty"`
	// Max is how many started agents of one agent may have a sandbox at once. Zero means DefaultMaxDelegates.
	Max int `json:"max,omitempty"`
}

// Defaults of [Delegation].
const (
	DefaultDepth        = 1
	DefaultMaxDelegates = 4
)

// Delegate is an agent that another one may start.
type Delegate struct {
	// Config is the file with its configuration; see [LoadConfig]. It is read whenever the agent is started. Without a sandbox
	// the agent gets one like that of the agent that starts it.
	Config string `json:"config"`
	// Description tells the model of the other agent what this one is for.
	Description string `json:"description,omitempty"`
	// Tags select the agent in requests that ask for tags.
	Tags []string `json:"tags,omitempty"`
}

// IsZero reports whether there is nothing to start.
func (d Delegation) IsZero() bool { return len(d.Agents) == 0 }

// Next returns what a started agent may itself start.
func (d Delegation) Next() Delegation {
	if d.Depth <= 1 {
		return Delegation{}
	}
	d.Depth--
	return d
}

// delegateName matches the name of an agent.
var delegateName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)

// check returns an error for values that are wrong whatever the files hold.
func (d Delegation) check() error {
	if d.Depth < 0 || d.Max < 0 {
		return fmt.Errorf("%w: delegation: depth and max count agents, and are not negative; leave them out for %d and %d", ErrConfig, DefaultDepth, DefaultMaxDelegates)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Agents)) {
		switch a := d.Agents[name]; {
		case !delegateName.MatchString(name):
			return fmt.Errorf("%w: delegation.agents: %q is no name; use up to 63 letters, digits, '_', '.' and '-'", ErrConfig, name)
		case a.Config == "":
			return fmt.Errorf("%w: delegation.agents.%s: it has no config; give the file with its configuration", ErrConfig, name)
		}
	}
	return nil
}

// checkDelegation returns an error for a delegation, and for a profile that has its server, too.
func (c Config) checkDelegation() error {
	if err := c.Delegation.check(); err != nil || c.Delegation.IsZero() {
		return err
	}
	if slices.ContainsFunc(c.Profile.MCPServers, func(m runnerscripts.MCPServer) bool { return m.Name == AgentsServer }) {
		return fmt.Errorf("%w: profile.mcp_servers: the server of the delegation has the name %q; rename the profile's own", ErrConfig, AgentsServer)
	}
	return nil
}

// Check reads the files of all agents. Errors are those of [Delegation.Load]. [Create] does not call it: an agent whose file
// was removed later matters only when it is started.
func (d Delegation) Check() error {
	for _, name := range slices.Sorted(maps.Keys(d.Agents)) {
		if _, err := d.Load(name); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the configuration of an agent. Errors are [ErrConfig], as an unknown name is.
func (d Delegation) Load(name string) (Config, error) {
	a, ok := d.Agents[name]
	if !ok {
		return Config{}, fmt.Errorf("%w: there is no agent %q to start; there are: %v", ErrConfig, name, slices.Sorted(maps.Keys(d.Agents)))
	}
	cfg, err := LoadConfig(a.Config)
	if err == nil && !cfg.Delegation.IsZero() {
		err = fmt.Errorf("%s: delegation: a started agent may start the same agents as the one that starts it; leave it out, and set delegation.depth there", a.Config)
	}
	if err != nil {
		return Config{}, fmt.Errorf("%w: delegation.agents.%s: %w", ErrConfig, name, err)
	}
	return cfg, nil
}

// Delegator is an agent that may start others.
type Delegator struct {
	// Config is the configuration of its environment, with the SessionID and the Delegation.
	Config Config
	// Meter counts what the agent uses: the usage of the agents that it starts counts to it.
	Meter *Meter
	// Isolation is that of its sandbox.
	Isolation primitives.Isolation
}

// AgentTools are tools of this program for the agent of one environment, over streamable HTTP of the Model Context Protocol.
type AgentTools interface {
	http.Handler
	// Interrupt is called when a query of the agent has failed or was interrupted. It must return soon.
	Interrupt(ctx context.Context)
	// SetAllowHosts is called when [Environment.SetAllowHosts] has changed which hosts the agent may reach: those that it starts
	// from now on may reach no others. It must not keep or change hosts.
	SetAllowHosts(hosts []string)
	// Close ends what the tools have started. The environment calls it once, when no request runs any more.
	Close() error
}

// hasTools reports whether the agent gets tools to start others.
func (c Config) hasTools() bool {
	return c.Agent.Name != "" && !c.Delegation.IsZero() && c.AgentTools != nil
}

// tools returns the tools of the agent in a sandbox; nil for none.
func (c Config) tools(ctx context.Context, p primitives.EnvironmentPrimitive, meter *Meter) (AgentTools, error) {
	if !c.hasTools() {
		if !c.Delegation.IsZero() && c.Agent.Name != "" && c.Logger != nil {
			c.Logger.Warn("the agent cannot start others: this program has no tools for that", "session", c.SessionID)
		}
		return nil, nil
	}
	tools, err := c.AgentTools(ctx, Delegator{Config: c, Meter: meter, Isolation: p.Capabilities().Isolation})
	if err != nil {
		return nil, fmt.Errorf("tools to start other agents: %w", err)
	}
	return tools, nil
}

// AgentsServer is the name of the MCP server with which an agent starts others: its tools are mcp__agents__start_agent_session
// and so on in the rules of permissions.
const AgentsServer = "agents"

// tokenVariable is the variable of the agent that has the token of its gateway.
const tokenVariable = "AGENTENV_GATEWAY_TOKEN"

// withAgents returns the agent and the profile with the MCP server at a gateway; nil means that it is not known yet.
func (c Config) withAgents(at *runnerscripts.Gateway) (Agent, Profile) {
	if !c.hasTools() {
		return c.Agent, c.Profile
	}
	url := "http://127.0.0.1"
	if at != nil {
		url = at.URL
		c.Agent.Env = maps.Clone(c.Agent.Env)
		if c.Agent.Env == nil {
			c.Agent.Env = map[string]string{}
		}
		c.Agent.Env[tokenVariable] = at.Token
	}
	c.Profile.MCPServers = append(slices.Clip(c.Profile.MCPServers), runnerscripts.MCPServer{
		Name: AgentsServer, URL: url + gateway.ToolsPath, Headers: map[string]string{"Authorization": "Bearer ${" + tokenVariable + "}"},
	})
	return c.Agent, c.Profile
}

// agent returns the agent as it is set now, without the token of its gateway.
func (e *Environment) agent() Agent {
	a := e.queries.Request().Agent
	if _, has := a.Env[tokenVariable]; has {
		a.Env = maps.Clone(a.Env)
		delete(a.Env, tokenVariable)
	}
	return a
}

// interruptDelegates wraps the loop over the events of a query: a query that does not complete interrupts the agents that its
// agent has started. detached says that the query goes on without the loop.
func (e *Environment) interruptDelegates(ctx context.Context, detached bool, yield func(runnerscripts.Event, error) bool) func(runnerscripts.Event, error) bool {
	if !e.cfg.hasTools() {
		return yield
	}
	return func(ev runnerscripts.Event, err error) bool {
		done, _ := ev.Value().(*runnerscripts.QueryCompleted)
		if err == nil && ev.Type.EndsQuery() && (done == nil || done.StopReason == runnerscripts.StopCancelled) {
			e.gate.Interrupt(context.WithoutCancel(ctx))
		}
		more := yield(ev, err)
		if !more && !detached && !ev.Type.EndsQuery() {
			e.gate.Interrupt(context.WithoutCancel(ctx))
		}
		return more
	}
}
