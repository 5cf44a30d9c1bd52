package environment

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// DefaultImage is what containers are made of where the configuration names no
// image.
const DefaultImage = "node:22-bookworm-slim"

// dockerBackend makes sandboxes that are containers.
func dockerBackend() backend {
	return backend{
		create: func(ctx context.Context, cfg Config) (primitives.EnvironmentPrimitive, error) {
			c, err := dockerConfig(ctx, cfg)
			if err != nil {
				return nil, err
			}
			return asPrimitive(newContainer(ctx, cfg, c))
		},
		attach: func(ctx context.Context, cfg Config, id string) (primitives.EnvironmentPrimitive, error) {
			c := cfg.Sandbox.Docker
			c.Logger = cfg.Logger
			s, err := docker.Attach(ctx, c, id)
			if _, is := errors.AsType[*guest.VersionError](err); is && c.Runner == "" {
				if c, err = dockerConfig(ctx, cfg); err == nil {
					s, err = docker.Attach(ctx, c, id)
				}
			}
			return asPrimitive(s, err)
		},
		remove: func(ctx context.Context, s Sandbox, id string) error {
			return docker.Remove(ctx, s.Docker, id)
		},
		list:     listDocker,
		history:  historyOfContainer,
		gc:       gcDocker,
		images:   &imageStore{build: buildImage, list: listImages, remove: removeImage},
		present:  func(s Sandbox) bool { return docker.Present(s.Docker) },
		settings: func(s *Sandbox) any { return &s.Docker },
		paths: func(s *Sandbox) []*string {
			all := []*string{&s.Docker.Workspace, &s.Docker.Runner, &s.Docker.Seccomp}
			for i := range s.Docker.Mounts {
				all = append(all, &s.Docker.Mounts[i].Source)
			}
			return all
		},
		single: func(s Sandbox) bool { return s.Docker.Name != "" },
	}
}

// dockerConfig adds to the settings of the sandbox what the environment knows.
func dockerConfig(ctx context.Context, cfg Config) (docker.Config, error) {
	c := cfg.Sandbox.Docker
	c.Keep = c.Keep || cfg.Keep
	if c.Session == "" {
		c.Session = cfg.SessionID
	}
	c.Logger, c.Progress = cfg.Logger, cfg.tell
	if c.Image == "" {
		c.Image = DefaultImage
	}
	if c.Runner == "" {
		c.Runner = cfg.Runner
	}
	if c.Runner != "" {
		// It is run here first, to ask what the agent needs, with a less clear error.
		if _, err := os.Stat(c.Runner); err != nil {
			return c, fmt.Errorf("%w: runner: %w", ErrConfig, err)
		}
		return c, nil
	}
	arch, err := docker.Arch(ctx, c)
	if err != nil {
		return c, err
	}
	c.Runner, err = bundle.Path(ctx, bundle.Config{OS: "linux", Arch: arch, Progress: cfg.tell})
	return c, err
}

func listDocker(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	found, err := docker.List(ctx, s.Docker)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		list = append(list, SandboxInfo{ID: f.ID, Type: s.Type, Status: f.Status, Created: f.Created, InUse: f.Owned, Image: f.Image, Kept: f.Kept})
	}
	return list, err
}

func historyOfContainer(ctx context.Context, s Sandbox, id string) ([]LogEntry, error) {
	found, err := docker.History(ctx, s.Docker, id)
	list := make([]LogEntry, 0, len(found))
	for _, f := range found {
		list = append(list, LogEntry{f.Time, logEngine, f.Message, f.OutOfMemory})
	}
	return list, err
}

func gcDocker(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	found, err := docker.GC(ctx, s.Docker, docker.GCOptions{DryRun: opts.DryRun, NoGrace: opts.NoGrace})
	removed := make([]Garbage, 0, len(found))
	for _, f := range found {
		removed = append(removed, Garbage{Kind: f.Kind, ID: f.ID, Why: f.Why, Created: f.Created})
	}
	return removed, err
}
