package main

import (
	"context"
	"encoding/json"

	"sigs.k8s.io/yaml"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
)

// printConfig checks a configuration and prompts as a run does before it makes anything, and prints the
// configuration.
func (f *runFlags) printConfig(ctx context.Context, cfg environment.Config, prompts []string) error {
	if err := (session.Config{Environment: cfg}).Check(ctx); err != nil {
		return notOpened(ctx, err)
	}
	for _, p := range prompts {
		if err := cfg.CheckPrompt(p); err != nil {
			return err
		}
	}
	config, err := environment.FormatSafely(cfg)
	if err != nil {
		return err
	}
	return f.print(config)
}

// print prints a configuration in JSON, on one line, or in YAML.
func (f *runFlags) print(config json.RawMessage) error {
	config = append(config, '\n')
	if !f.asJSON {
		var err error
		if config, err = yaml.JSONToYAML(config); err != nil {
			return err
		}
	}
	_, err := f.app.out.Write(config)
	return err
}
