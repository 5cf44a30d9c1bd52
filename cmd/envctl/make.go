package main

import (
	"context"
	"errors"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
)

// makeFlags say what a new sandbox is like.
type makeFlags struct {
	image, network, memory string
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
	if err != nil || math.IsInf(n, 0) || !(n >= 0) { // not a number, too
		return errors.New("it is no positive number; give one such as 1.5, or 0 for no limit")
	}
	p.n, p.given = n, true
	return nil
}

func (m *makeFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&m.image, "image", "", "image of the sandbox (default "+environment.DefaultImage+"); implies --sandbox docker where none is chosen")
	fl.StringVar(&m.network, "network", "", "none, or for a container: bridge or the network's name (default one on which sandboxes do not reach each other)")
	fl.StringVar(&m.memory, "memory", "", "most memory of the sandbox, as in 512m or 8g, or none (default 4g for a container, Modal's own there)")
	fl.Var(&m.cpus, "cpus", "most processors of the sandbox, as in 1.5, or 0 for no limit (default all but one for a container, no limit at Modal)")
	_ = cmd.RegisterFlagCompletionFunc("image", completeImages)
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp))
}

// loadNew returns the configuration of a new sandbox.
func (t *target) loadNew(ctx context.Context, m *makeFlags) (environment.Config, error) {
	cfg, err := t.load(ctx)
	if err != nil {
		return cfg, err
	}
	cfg.Progress = t.app.newProgress()
	return cfg, m.apply(&cfg)
}

// newProgress prints what takes longer than a moment to standard error.
func (a *app) newProgress() func(string) {
	return func(message string) { _ = a.err.println(dim(message)) }
}

// apply sets what the flags say over the configuration, and the type of the
// sandbox where nothing does.
func (m *makeFlags) apply(cfg *environment.Config) error {
	s := &cfg.Sandbox
	given := m.given()
	switch {
	case s.Type == "" && given == "":
		s.Type = "local"
	case s.Type == "":
		s.Type = "docker"
	case (s.Type == "local" || s.Type == "ssh") && given != "":
		return usagef("%s is for containers and Modal, and the sandbox is %s; give --sandbox docker or modal", given, s.Type)
	}
	memory, err := m.size()
	if err != nil {
		return err
	}
	if s.Type == "modal" {
		return m.applyModal(&s.Modal, memory)
	}
	if memory > 0 && memory < leastMemory {
		return usagef("--memory: a container needs at least %dm; give more, or none for no limit", leastMemory>>20)
	}
	if m.image != "" {
		s.Docker.Image = m.image
	}
	if m.network != "" {
		s.Docker.Network = m.network
	}
	if m.cpus.given {
		s.Docker.CPUs = m.cpus.n
		if m.cpus.n == 0 {
			s.Docker.CPUs = -1
		}
	}
	if memory != 0 {
		s.Docker.Memory = memory
	}
	return nil
}

// leastMemory is what the guest in a container needs at least.
const leastMemory = 32 << 20

// Of what is a limit elsewhere Modal also wants to know how much to reserve. These
// are its own defaults.
const (
	reservedCPUs = 0.125
	reservedMiB  = 128
)

func (m *makeFlags) applyModal(c *modal.Config, memory primitives.Size) error {
	if m.image != "" {
		c.Image = m.image
	}
	switch m.network {
	case "":
	case "none":
		c.BlockNetwork, c.AllowCIDRs, c.AllowDomains = true, nil, nil
	default:
		return usagef("--network: there is no network %q at Modal; give none, or leave it out", m.network)
	}
	switch {
	case m.cpus.n > 0:
		c.CPU, c.CPULimit = min(max(c.CPU, reservedCPUs), m.cpus.n), m.cpus.n
	case m.cpus.given:
		c.CPULimit = 0
	}
	switch mib := int(memory >> 20); {
	case memory < 0:
		c.MemoryLimitMiB = 0
	case memory > 0 && mib < reservedMiB:
		return usagef("--memory: a sandbox at Modal needs at least %dm; give more", reservedMiB)
	case memory > 0:
		c.MemoryMiB, c.MemoryLimitMiB = min(max(c.MemoryMiB, reservedMiB), mib), mib
	}
	return nil
}

// size reads --memory; 0 is nothing.
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

// given names the first of the flags that was given.
func (m *makeFlags) given() string {
	switch {
	case m.image != "":
		return "--image"
	case m.network != "":
		return "--network"
	case m.memory != "":
		return "--memory"
	case m.cpus.given:
		return "--cpus"
	}
	return ""
}
