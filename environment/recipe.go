package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

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

// readRecipe asks the runner what an agent needs in a sandbox. Where the configured runner
// is for another platform, that of this machine tells the same.
func readRecipe(ctx context.Context, cfg Config) (r runnerscripts.Recipe, err error) {
	if err := cfg.checkRunner(); err != nil {
		return r, err
	}
	if cfg.Runner != "" {
		if r, err = askRecipes[runnerscripts.Recipe](ctx, cfg.Runner, cfg.Agent.Name); !errors.Is(err, syscall.ENOEXEC) {
			return r, err
		}
	}
	runner, err := bundle.Path(ctx, bundle.Config{Progress: cfg.tell})
	if err != nil {
		return r, fmt.Errorf("what the agent needs: %w", err)
	}
	return askRecipes[runnerscripts.Recipe](ctx, runner, cfg.Agent.Name)
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
