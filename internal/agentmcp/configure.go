package agentmcp

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
)

// The keys of a session's metadata: the session whose agent has started it, and its name in the delegation.
const (
	metaParent = session.DelegatedBy
	metaAgent  = "delegate"
)

// configure returns the configuration of an agent: that of its file, within the limits of the agent that starts it.
func (f *family) configure(name string) (environment.Config, error) {
	parent := f.config()
	cfg, err := parent.Delegation.Load(name)
	if err != nil {
		return cfg, err
	}
	if cfg.Sandbox.Type == "" {
		cfg.Sandbox = likeOf(parent.Sandbox)
	}
	f.owner.cfg.Complete(&cfg)
	switch {
	case cfg.Agent.Name == "":
		return cfg, fmt.Errorf("delegation.agents.%s: the file names no agent; add one, as in 'agent: claude'", name)
	case cfg.Sandbox.Keep || cfg.Name != "":
		return cfg, fmt.Errorf("delegation.agents.%s: its sandbox ends with that of the agent that starts it; leave sandbox.keep and name out", name)
	}
	if err := within(parent.Sandbox, &cfg.Sandbox); err != nil {
		return cfg, fmt.Errorf("delegation.agents.%s: %w", name, err)
	}
	if models := &cfg.Models; len(models.Allow) == 0 && len(models.Rewrite) == 0 && models.ProviderTools == nil {
		cfg.Models = parent.Models
	}
	cfg.Delegation = parent.Delegation.Next()
	f.bind(&cfg, name)
	return cfg, nil
}

// bind sets what no store holds.
func (f *family) bind(cfg *environment.Config, name string) {
	parent := f.config()
	cfg.AgentTools, cfg.Session.CountTo, cfg.Session.From, cfg.Trust = parent.AgentTools, f.of.Meter, f.of.Isolation, false
	cfg.Session.User, cfg.Session.Within = parent.Session.User, parent.Rules()
	cfg.Logger, cfg.PermissionTimeout, cfg.OnPermission = parent.Logger, parent.PermissionTimeout, parent.OnPermission
	if answer := f.owner.cfg.OnPermission; answer != nil {
		cfg.OnPermission = func(ctx context.Context, req environment.PermissionRequest) environment.PermissionDecision {
			return answer(ctx, name, req)
		}
	}
}

// likeOf returns a new sandbox with the settings of another.
func likeOf(box environment.Sandbox) environment.Sandbox {
	box.Workspace, box.WorkspacePath, box.Name, box.Ports, box.Session, box.Keep = "", "", "", nil, "", false
	return box
}

// within returns an error if a sandbox may reach more than that of the agent that starts it. A sandbox that says nothing gets
// no network if that has none.
func within(parent environment.Sandbox, box *environment.Sandbox) error {
	if parent.Network != "none" {
		return nil
	}
	if box.Network == "" {
		box.Network = "none"
	}
	if box.Network != "none" {
		return fmt.Errorf("sandbox.network: %q is more than the agent that starts it has; leave it out, or give that agent a network", box.Network)
	}
	for _, host := range box.AllowHosts {
		if !slices.Contains(parent.AllowHosts, host) {
			return fmt.Errorf("sandbox.allow_hosts: the agent that starts it may not reach %s; allow it there, too", host)
		}
	}
	return nil
}

// metadata returns that of a session: the session of the agent that starts it has the same owner.
func (f *family) metadata(ctx context.Context, name string) map[string]string {
	meta := map[string]string{}
	if rec, err := f.host().Store().Load(ctx, f.parent); err == nil {
		maps.Copy(meta, rec.Metadata)
	}
	meta[metaParent], meta[metaAgent] = f.parent, name
	return meta
}

// open opens a stored session again, with what no store holds.
func (f *family) open(ctx context.Context, id, name string) (*session.AgentSession, error) {
	fresh, err := f.configure(name)
	if err != nil {
		return nil, err
	}
	return f.host().OpenAs(ctx, id, func(cfg *session.Config) {
		f.bind(&cfg.Environment, name)
		cfg.Environment.Agent.Env = fresh.Agent.Env
		cfg.Environment.Permissions, cfg.Environment.Delegation = fresh.Permissions, fresh.Delegation
	})
}
