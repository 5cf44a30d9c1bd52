package environment

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// errUnasked is the reason against a setting with which an agent does not ask.
var errUnasked = errors.New("what runs without a question cannot be denied by permissions")

// profileRules returns the rules of the profile.
func (c Config) profileRules() permission.Rules {
	p := c.Profile.Permissions
	return permission.Rules{Mode: permission.Mode(p.Mode), Allow: p.Allow, Ask: p.Ask, Deny: p.Deny}
}

// hasPermissions reports whether rules decide.
func (c Config) hasPermissions() bool {
	return !c.Permissions.IsZero() || !c.Profile.Permissions.IsZero() || !c.PermissionLimits.IsZero() || len(c.Session.Within) > 0
}

// checkPermissions returns an error for rules that do not parse, and for settings with which the agent
// would not ask.
func (c Config) checkPermissions() error {
	if !c.hasPermissions() {
		return nil
	}
	if _, err := c.rules(permission.Place{}); err != nil {
		return err
	}
	switch {
	case c.Agent.PermissionMode != "":
		return fmt.Errorf("agent.permission_mode: %w; leave it out, and choose permissions.mode: ask, edit, plan or auto", errUnasked)
	case c.Profile.PermissionMode != "":
		return fmt.Errorf("profile.permission_mode: %w; leave it out, and choose permissions.mode: ask, edit, plan or auto", errUnasked)
	case c.Agent.TrustWorkspace:
		return fmt.Errorf("agent.trust_workspace: %w, and settings of the repository may allow it; leave it out", errUnasked)
	case len(c.Profile.AllowedTools) > 0:
		return fmt.Errorf("profile.allowed_tools: %w; write them as permissions.allow", errUnasked)
	}
	return nil
}

// sources returns what the session's workspace began with.
func (c Config) sources(from origin) []Source {
	switch {
	case c.Session.Sources != nil:
		return c.Session.Sources
	case c.Workspace != nil:
		return c.Workspace
	}
	return from.folders
}

// answersOf returns where answers of the scope always hold. Without a folder or a repository they would
// hold in projects that have nothing to do with each other: then its Project is empty.
func (c Config) answersOf(from origin, p primitives.EnvironmentPrimitive) answers.Place {
	var project []string
	if c.Sandbox.Workspace != "" {
		project = append(project, c.Sandbox.Workspace)
	}
	for _, s := range c.sources(from) {
		switch {
		case s.Folder != nil:
			project = append(project, s.Folder.Path)
		case s.Git != nil:
			at, err := url.Parse(s.Git.URL)
			if err != nil || at.Host == "" {
				project = append(project, s.Git.URL)
				continue
			}
			at.User = nil
			project = append(project, at.String())
		}
	}
	for i, name := range project {
		if abs, err := filepath.Abs(name); err == nil && !strings.Contains(name, ":") {
			project[i] = abs
		}
	}
	return answers.Place{
		User: c.Session.User, Project: strings.Join(project, " + "), Agent: c.Agent.Name, Isolation: string(p.Capabilities().Isolation),
	}
}

// policies returns the rules for an agent in a workspace, nil for none, and a policy without rules that
// names tools.
func (c Config) policies(workspace string) (decide, names *permission.Policy, err error) {
	place := permission.Place{Workspace: workspace}
	_, profile := c.withAgents(nil)
	for _, s := range profile.MCPServers {
		place.Servers = append(place.Servers, s.Name)
	}
	names, err = permission.New(permission.Rules{}, place)
	if err == nil && c.hasPermissions() {
		decide, err = c.rules(place)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return decide, names, nil
}

// namedRules are rules and where they are from.
type namedRules struct {
	permission.Rules
	where string
}

// allRules returns the rules that decide. The others narrow the first.
func (c Config) allRules() []namedRules {
	var all []namedRules
	add := func(where string, r permission.Rules) {
		if !r.IsZero() {
			all = append(all, namedRules{r, where})
		}
	}
	for _, r := range c.Session.Within {
		add("permissions of the agent that starts it", r)
	}
	add("permissions", c.Permissions)
	add("profile.permissions", c.profileRules())
	if len(all) == 0 && !c.PermissionLimits.IsZero() {
		add("permissions", permission.Rules{Mode: permission.ModeAsk})
	}
	add("permission limits", c.PermissionLimits)
	return all
}

// Rules returns all rules that decide about the agent's calls, for Within of the agents that it starts.
func (c Config) Rules() []permission.Rules {
	var all []permission.Rules
	for _, r := range c.allRules() {
		all = append(all, r.Rules)
	}
	return all
}

// rules returns the policy of all rules.
func (c Config) rules(place permission.Place) (*permission.Policy, error) {
	var p *permission.Policy
	for _, r := range c.allRules() {
		var err error
		if p == nil {
			p, err = permission.New(r.Rules, place)
		} else {
			p, err = p.Narrow(r.Rules)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.where, err)
		}
	}
	return p, nil
}

// AllowRules returns rules with which a request would have been allowed without asking, if they are added to Permissions.Allow.
// workspace is the path of the workspace in the sandbox; empty if it is not known. AllowRules returns nil if there are none: a
// rule asks or denies, the agent asks its user for words, or it may not ask about everything.
func (c Config) AllowRules(workspace string, req PermissionRequest) []string {
	call := query.CallOf(req.ToolCall)
	_, names, err := c.policies(workspace)
	if err != nil {
		return nil
	}
	rules := names.Suggest(call)
	if workspace == "" && slices.ContainsFunc(rules, func(rule string) bool { return strings.Contains(rule, "(/") }) {
		return nil // it may be a path of the workspace
	}
	c.Permissions.Allow = slices.Concat(c.Permissions.Allow, rules)
	policy, _, err := c.policies(workspace)
	if err != nil || len(rules) == 0 || c.checkPermissions() != nil || policy.Decide(call).Effect != permission.Allow {
		return nil
	}
	return rules
}

// deniesOf returns the tools that the agent must not offer to its model.
func deniesOf(policy *permission.Policy) []string {
	if policy == nil {
		return nil
	}
	return policy.DeniedTools()
}

// asksOf returns the tools about whose calls the agent must always ask.
func asksOf(policy *permission.Policy) (tools []string) {
	for _, tool := range []string{runnerscripts.AsksBash, runnerscripts.AsksRead} {
		if policy != nil && policy.Restricts(tool) {
			tools = append(tools, tool)
		}
	}
	return tools
}
