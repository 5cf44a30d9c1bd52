package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// makeFlags are the flags that describe a new sandbox.
type makeFlags struct {
	image, network, memory string
	hosts                  []string
	cpus                   processors
}

// processors is the value of --cpus.
type processors struct {
	n     float64 // zero means no limit
	given bool
}

func (p *processors) String() string { return strconv.FormatFloat(p.n, 'g', -1, 64) }
func (p *processors) Type() string   { return "float" }

func (p *processors) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(n, 0) || !(n >= 0) { // also rejects NaN
		return errors.New("it is no positive number; give one such as 1.5, or 0 for no limit")
	}
	p.n, p.given = n, true
	return nil
}

func (m *makeFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&m.image, "image", "", "image of the sandbox (default "+environment.DefaultImage+"); implies --sandbox docker where none is chosen")
	fl.StringVar(&m.network, "network", "", "none, or for a container: bridge or the network's name (default one on which sandboxes do not reach each other)")
	fl.StringArrayVar(&m.hosts, "allow-host", nil, "host that a sandbox with --network none may reach, as in example.com, '*.example.com' or example.com:8443; may be given more than once")
	fl.StringVar(&m.memory, "memory", "", "most memory of a container or a sandbox at Modal, as in 512m or 8g, or none (default 4g for a container)")
	fl.Var(&m.cpus, "cpus", "most processors of a container or a sandbox at Modal, as in 1.5, or 0 for no limit (default all but one for a container)")
	_ = cmd.RegisterFlagCompletionFunc("image", completeImages)
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp))
}

// The default types of sandbox, in general and for a sandbox with an image.
const defaultType, defaultImageType = "local", "docker"

// loadNew returns the configuration of a new sandbox.
func (t *target) loadNew(ctx context.Context, m *makeFlags) (environment.Config, error) {
	cfg, err := t.read(ctx)
	if err != nil {
		return cfg, err
	}
	cfg.Progress = t.app.newProgress()
	chosen := cfg.Sandbox.Type != "" || m.image != ""
	if err := m.apply(&cfg); err != nil {
		return cfg, err
	}
	if !chosen && t.app.sandboxServer != "" {
		cfg.Sandbox.Type = "" // the server's
	}
	return cfg, t.app.overServer(&cfg.Sandbox)
}

// newProgress returns a function that prints progress messages to standard error.
func (a *app) newProgress() func(string) {
	return func(message string) { _ = a.err.Println(term.Dim(message)) }
}

// apply overrides the configuration with the flags. If no type is chosen, --image chooses
// Docker.
func (m *makeFlags) apply(cfg *environment.Config) error {
	s := &cfg.Sandbox
	if s.Type == "" {
		s.Type = defaultType
		if m.image != "" {
			s.Type = defaultImageType
		}
	}
	memory, err := m.size()
	if err != nil {
		return err
	}
	s.Image, s.Network = firstOf(m.image, s.Image), firstOf(m.network, s.Network)
	s.Memory = cmp.Or(memory, s.Memory)
	if len(m.hosts) > 0 {
		s.AllowHosts = m.hosts
	}
	if m.cpus.given {
		s.CPUs = cmp.Or(m.cpus.n, -1) // no limit
	}
	return nil
}

// size parses --memory; zero means that the flag was not given.
func (m *makeFlags) size() (primitives.Size, error) {
	if m.memory == "" {
		return 0, nil
	}
	size, err := primitives.ParseSize(m.memory)
	if err != nil || size == 0 {
		return 0, usagef("--memory: %q is no size; give a number with a unit, such as 512m or 8g, or none", m.memory)
	}
	return size, nil
}

// given returns the name of the first flag that was given; empty if there is none.
func (m *makeFlags) given() string {
	switch {
	case m.image != "":
		return "--image"
	case m.network != "":
		return "--network"
	case len(m.hosts) > 0:
		return "--allow-host"
	case m.memory != "":
		return "--memory"
	case m.cpus.given:
		return "--cpus"
	}
	return ""
}
