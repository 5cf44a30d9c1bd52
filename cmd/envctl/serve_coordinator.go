package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// coordinatorFolder is the name of the coordinator's folder in the state folder.
const coordinatorFolder = "coordinator"

// openCoordinator opens the coordinator of this user. It is nil if another server has it.
func (f *serveFlags) openCoordinator(ctx context.Context, log hclog.Logger) (*coordinator.Coordinator, func() error, error) {
	none := func() error { return nil }
	cfg := coordinator.Config{Logger: log}
	if f.agents != "" {
		data, err := input.ReadStream(ctx, f.agents, maxInput)
		if ctx.Err() != nil {
			return nil, none, err
		}
		if err == nil {
			cfg.Agents, err = coordapi.ParseAgents(data)
		}
		if err != nil {
			return nil, none, usagef("--agents: %s: %w", f.agents, err)
		}
	}
	root, err := statedir.Open(coordinatorFolder)
	if err != nil {
		return nil, none, err
	}
	cfg.Dir = root.Name()
	if err := root.Close(); err != nil {
		return nil, none, err
	}
	c, err := coordinator.Open(ctx, cfg)
	switch {
	case errors.Is(err, coordinator.ErrInUse):
		if f.agents != "" {
			return nil, none, fmt.Errorf("--agents: %w; end the other server, or leave --agents out", err)
		}
		_ = f.app.err.Println(term.Dim("another server of this machine has the coordinator; this one has none"))
		return nil, none, nil
	case err != nil:
		return nil, none, err
	}
	return c, c.Close, nil
}
