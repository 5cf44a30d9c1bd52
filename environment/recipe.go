package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// askRecipes asks a runner of this machine for what it knows of agents: of one that is
// named, or of all.
func askRecipes[T any](ctx context.Context, runner string, agent ...string) (T, error) {
	out, err := askRunner(ctx, runner, agent...)
	var none T
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Err: err}
	}
	// Whatever its status: the result says more.
	var result runnerscripts.Result
	if jerr := json.Unmarshal(out, &result); jerr != nil {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Err: errors.Join(err, jerr)}
	}
	if !result.OK {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Failure: result.Error, Err: errNoReason}
	}
	return resultData[T](runnerscripts.PrintRecipe, result)
}

// readRecipe asks the runner what an agent needs in a sandbox. Where the runner of
// the sandbox is for another platform, that of this machine tells the same.
func readRecipe(ctx context.Context, cfg Config, runner string) (runnerscripts.Recipe, error) {
	r, err := askRecipes[runnerscripts.Recipe](ctx, runner, cfg.Agent.Name)
	if errors.Is(err, syscall.ENOEXEC) {
		if runner, err = bundle.Path(ctx, bundle.Config{Progress: cfg.tell}); err != nil {
			return runnerscripts.Recipe{}, fmt.Errorf("what the agent needs: %w", err)
		}
		return askRecipes[runnerscripts.Recipe](ctx, runner, cfg.Agent.Name)
	}
	return r, err
}

// askRunner returns what the runner prints, which needs nothing of this program's
// environment for that.
func askRunner(ctx context.Context, runner string, agent ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, runner, append([]string{runnerscripts.PrintRecipe}, agent...)...)
	cmd.Env = []string{"LANG=C"}
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.Bytes(), err
}

// wantsProgram reports whether an agent's own program is to be started in the
// sandbox: not if the configuration names another one.
func (c Config) wantsProgram() bool {
	return c.Agent.Name != "" && len(c.Agent.Command) == 0 && len(c.Scripts.ExecuteQuery) == 0
}

// lacks returns those of some commands that a sandbox does not have.
func lacks(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, names ...string) ([]string, error) {
	var env []string
	for key, value := range cfg.Agent.Env {
		env = append(env, key+"="+value)
	}
	slices.Sort(env)
	var missing []string
	for _, name := range names {
		// That it starts is enough.
		proc, err := p.Exec(ctx, primitives.Command{Args: []string{name, "--version"}, Env: env})
		switch {
		case errors.Is(err, primitives.ErrCommandNotFound):
			missing = append(missing, name)
			continue
		case err != nil:
			return nil, fmt.Errorf("look for %s in the sandbox: %w", name, err)
		}
		if err := proc.Close(); err != nil {
			return nil, fmt.Errorf("look for %s in the sandbox: %w", name, err)
		}
	}
	return missing, nil
}

// installers are the commands that install what a recipe names.
func installers(r runnerscripts.Recipe) []string {
	var names []string
	if len(r.Debian) > 0 {
		names = append(names, "apt-get")
	}
	if len(r.NPM) > 0 {
		names = append(names, "npm")
	}
	return names
}

// aptGet does not change its user, which it may not do in a container without
// capabilities.
const aptGet = "apt-get -o APT::Sandbox::User=root "

// installation are the commands of a shell that follow a recipe. They leave no
// caches in the image.
func installation(r runnerscripts.Recipe) []string {
	var commands []string
	if len(r.Debian) > 0 {
		packages := strings.Join(r.Debian, " ")
		commands = append(commands, "dpkg-query --show "+packages+" >/dev/null 2>&1 || { "+
			aptGet+"update && DEBIAN_FRONTEND=noninteractive "+aptGet+"install --yes --no-install-recommends "+packages+
			" && rm -rf /var/lib/apt/lists/*; }")
	}
	if len(r.NPM) > 0 {
		commands = append(commands, "npm install --global --no-audit --no-fund --no-update-notifier --cache /tmp/npm-cache "+
			strings.Join(r.NPM, " ")+" && rm -rf /tmp/npm-cache")
	}
	return commands
}
