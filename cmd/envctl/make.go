package main

import (
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
)

// makeFlags say what a new sandbox is like.
type makeFlags struct {
	image, network, memory string
	cpus                   float64
}

func (m *makeFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&m.image, "image", "", "image of the container (default "+environment.DefaultImage+"); implies --sandbox docker")
	fl.StringVar(&m.network, "network", "", "network of the container: bridge, none or its name (default bridge)")
	fl.StringVar(&m.memory, "memory", "", "most memory of the container, as in 512m or 8g, or none (default 4g)")
	fl.Float64Var(&m.cpus, "cpus", 0, "most processors of the container, as in 1.5 (default no limit)")
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"bridge", "none"}, cobra.ShellCompDirectiveNoFileComp))
}

// loadNew returns the configuration of a new sandbox.
func (t *target) loadNew(m *makeFlags) (environment.Config, error) {
	cfg, err := t.load()
	if err != nil {
		return cfg, err
	}
	cfg.Progress = t.app.newProgress()
	return cfg, m.apply(&cfg)
}

// newProgress prints what takes longer than a moment to standard error.
func (a *app) newProgress() func(string) {
	note := newStyle(a.err)
	var printing sync.Mutex
	return func(message string) {
		printing.Lock()
		defer printing.Unlock()
		fmt.Fprintln(a.err, note.dim(plain(message)))
	}
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
	case s.Type != "docker" && given != "":
		return usagef("use %s with --sandbox docker: the sandbox is %s", given, s.Type)
	}
	if m.image != "" {
		s.Docker.Image = m.image
	}
	if m.network != "" {
		s.Docker.Network = m.network
	}
	if m.cpus < 0 {
		return usagef("give --cpus as a positive number, such as 1.5")
	}
	if m.cpus > 0 {
		s.Docker.CPUs = m.cpus
	}
	if m.memory != "" {
		size, err := primitives.ParseSize(m.memory)
		if err != nil || size == 0 {
			return usagef("give --memory as a number with a unit, such as 512m or 8g, or none, not %q", m.memory)
		}
		s.Docker.Memory = size
	}
	return nil
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
	case m.cpus != 0:
		return "--cpus"
	}
	return ""
}
