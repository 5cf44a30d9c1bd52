package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/agentmcp"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// delegateFlags is the flag that names other agents.
type delegateFlags struct{ files []string }

func (f *delegateFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.files, "delegate", nil, "agent that the agent may start, NAME=FILE with its configuration; may be repeated")
}

// apply adds the agents of the flag to those of the configuration.
func (f *delegateFlags) apply(to *environment.Delegation) error {
	for _, text := range f.files {
		name, file, ok := strings.Cut(text, "=")
		if !ok || name == "" || file == "" {
			return usagef("--delegate: %q is no NAME=FILE; give a name and a configuration file, as in reviewer=reviewer.yaml", text)
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if to.Agents == nil {
			to.Agents = map[string]environment.Delegate{}
		}
		to.Agents[name] = environment.Delegate{Config: path}
	}
	return nil
}

// delegates returns a server of the tools with which agents start others. OnPermission answers these; nil means that whatever
// answers those that start them does.
func (a *app) delegates(cfg environment.Config, answer func(context.Context, string, environment.PermissionRequest) environment.PermissionDecision) *agentmcp.Server {
	return agentmcp.New(agentmcp.Config{
		OnPermission: answer, Version: currentVersion().Version, Logger: cfg.Logger,
		Complete: func(own *environment.Config) {
			own.Sandbox.Type = firstOf(own.Sandbox.Type, defaultType)
			if own.Credentials == nil {
				own.Credentials = ownCredentials(own.Agent.Env)
			}
		},
	})
}

// delegate grants the agent of cfg those of its delegation. Their sessions are in st. The caller must call end after the end of
// the agent's own.
func (v *view) delegate(cfg *environment.Config, st store.Store) (end func(context.Context) error, err error) {
	if cfg.Delegation.IsZero() {
		return func(context.Context) error { return nil }, nil
	}
	tools := v.app.delegates(*cfg, v.decideFor)
	host, err := delegateHost(tools, cfg, st)
	if err != nil {
		return nil, err
	}
	return host.Shutdown, nil
}

// delegateStored is delegate for an agent that has no stored session of its own.
func (v *view) delegateStored(ctx context.Context, cfg *environment.Config) (end func(context.Context) error, err error) {
	if cfg.Delegation.IsZero() {
		return v.delegate(cfg, nil)
	}
	st, closeStore, _, err := v.app.storeOfRuns(ctx, false)
	if err != nil {
		return nil, err
	}
	endHost, err := v.delegate(cfg, st)
	if err != nil {
		return nil, errors.Join(err, closeStore())
	}
	return func(ctx context.Context) error { return errors.Join(endHost(ctx), closeStore()) }, nil
}

// delegateHost returns a host for the sessions of the agents that tools start.
func delegateHost(tools *agentmcp.Server, cfg *environment.Config, st store.Store) (*session.Host, error) {
	cfg.AgentTools = tools.Tools
	host, err := session.NewHost(session.HostConfig{Store: st, Session: session.Config{Environment: environment.Config{
		AgentTools: tools.Tools, Logger: cfg.Logger,
	}}})
	if err == nil {
		tools.Use(host)
	}
	return host, err
}

// decideFor answers a permission request of an agent that another one has started. Its events are not printed.
func (v *view) decideFor(ctx context.Context, agent string, req environment.PermissionRequest) environment.PermissionDecision {
	switch {
	case v.answer == nil:
		return environment.AnswerLater(ctx, req)
	case v.answer.policy == permissionDeny:
		return unasked(ctx, agent, req)
	}
	req.ToolCall.Title = agent + ": " + firstOf(req.ToolCall.Title, req.ToolCall.Name)
	return v.answer.decide(ctx, req)
}

// unasked rejects the requests of agents that another one has started, where no user sees them.
func unasked(ctx context.Context, agent string, req environment.PermissionRequest) environment.PermissionDecision {
	if req.MayDeny != "" { // which AllowAll rejects, and no configuration allows
		return environment.AllowAll(ctx, req)
	}
	return req.Reject("No user is present to allow this; permissions.allow in the configuration of " + agent + " can.")
}
