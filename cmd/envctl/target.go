package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
)

// target says which sandbox a command works on and how to reach it.
type target struct {
	app     *app
	sandbox string
	config  string
	env     []string
	log     logFlags
	named   string // the agent of a sandbox without a record on this machine
}

// flags adds the flags that choose a sandbox.
func (t *target) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&t.sandbox, "sandbox", "s", "", "kind of sandbox: "+strings.Join(primitives.Types(), ", ")+"; ssh:HOST and remote:URL name the machine (default: local for a new one, any kind for one that is there)")
	f.StringVarP(&t.config, "config", "c", "", "configuration file (YAML or JSON)")
	t.log.flags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cobra.FixedCompletions(primitives.Types(), cobra.ShellCompDirectiveNoFileComp))
}

// envFlag adds the flag for variables of the agent or command.
func (t *target) envFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&t.env, "env", "e", nil, "variable of the agent or command, KEY=VALUE, or KEY to pass this program's own on")
}

// agentFlag adds the flag that names the agent of a sandbox without a record on this machine.
func (t *target) agentFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.named, "agent", "a", "", "agent that goes on; another one than the sandbox has had continues its conversation; its settings come from --config")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(agentNames(), cobra.ShellCompDirectiveNoFileComp))
}

// load returns the configuration of the file, overridden by the flags. If neither chooses a type
// of sandbox, Sandbox.Type is empty. With --server the sandboxes are those of the server.
func (t *target) load(ctx context.Context) (environment.Config, error) {
	cfg, err := t.read(ctx)
	if err == nil {
		err = t.app.overServer(&cfg.Sandbox)
	}
	return cfg, err
}

// read is load for this machine.
func (t *target) read(ctx context.Context) (environment.Config, error) {
	var cfg environment.Config
	if t.config != "" {
		var err error
		if cfg, err = readConfig(ctx, t.config); ctx.Err() != nil {
			return cfg, err
		} else if err != nil {
			return cfg, &exitError{code: exitUsage, err: err}
		}
	}
	if t.sandbox != "" {
		if err := cfg.Sandbox.Choose(t.sandbox); err != nil {
			return cfg, &exitError{code: exitUsage, err: err}
		}
	}
	if typ := cfg.Sandbox.Type; typ != "" && !slices.Contains(primitives.Types(), typ) {
		return cfg, usagef("there is no sandbox %q; %s", typ, meant(typ, primitives.Types()))
	}
	env, err := variables(t.env)
	if err != nil {
		return cfg, err
	}
	for key, value := range env {
		if cfg.Agent.Env == nil {
			cfg.Agent.Env = make(map[string]string)
		}
		cfg.Agent.Env[key] = value
	}
	if t.named != "" {
		cfg.Agent.Name = t.named
		if err := resolveExecutor(t.config, &cfg); err != nil {
			return cfg, err
		}
	}
	if cfg.Credentials == nil {
		cfg.Credentials = ownCredentials(cfg.Agent.Env)
	}
	cfg.Logger, err = t.log.logger(t.app.err)
	return cfg, err
}

// ownCredentials returns the API keys in this program's environment, by the variables that the
// agents themselves read. They stay on this machine. It leaves out keys in given, which the
// agent gets.
func ownCredentials(given map[string]string) map[string]environment.Credential {
	found := map[string]environment.Credential{}
	for _, api := range []struct {
		name, url string
		keys      []string
	}{
		{"anthropic", "ANTHROPIC_BASE_URL", []string{"ANTHROPIC_API_KEY"}},
		{"openai", "OPENAI_BASE_URL", []string{"OPENAI_API_KEY"}},
		{"gemini", "GOOGLE_GEMINI_BASE_URL", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
	} {
		for _, key := range api.keys {
			if _, explicit := given[key]; !explicit && os.Getenv(key) != "" {
				found[api.name] = environment.Credential{Env: key, URL: os.Getenv(api.url)}
				break
			}
		}
	}
	return found
}

// maxInput is how many bytes are read from a pipe or a scenario file: 4 MiB.
const maxInput = 4 << 20

// readConfig reads a configuration from a file or, until ctx is done, from a pipe. Paths in a
// configuration from a pipe are relative to the working directory.
func readConfig(ctx context.Context, name string) (environment.Config, error) {
	if !input.IsPipe(name) {
		return environment.LoadConfig(name)
	}
	data, err := input.ReadStream(ctx, name, maxInput)
	if err != nil {
		return environment.Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return environment.ParseConfig(data)
}

// variables parses entries of the form KEY=VALUE, or KEY for a variable of this program.
func variables(list []string) (map[string]string, error) {
	env := make(map[string]string, len(list))
	for _, entry := range list {
		key, value, given := strings.Cut(entry, "=")
		if key == "" {
			return nil, usagef("--env: the name of the variable is empty; give KEY=VALUE or KEY")
		}
		if !given {
			var set bool
			if value, set = os.LookupEnv(key); !set {
				return nil, usagef("--env %s passes on a variable that is not set; set %[1]s, or give --env %[1]s=VALUE", key)
			}
		}
		env[key] = value
	}
	return env, nil
}

// place is ID:PATH, a path of a sandbox, or a path of this machine.
type place struct {
	id, path string
}

// parsePlace parses a place. A path of this machine that contains a colon can be given with a
// slash before it: ./a:b.
func parsePlace(s string) place {
	id, path, ok := strings.Cut(s, ":")
	if !ok || id == "" || strings.ContainsAny(id, `/\`) {
		return place{path: s}
	}
	return place{id: id, path: path}
}
