package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// AgentInfo says what an agent can do and what it needs in a sandbox.
type AgentInfo = runnerscripts.Recipe

// Agents returns the agents that can be chosen by Agent.Name, in the order of their
// names. Of cfg counts the Runner, which knows them, and Progress.
func Agents(ctx context.Context, cfg Config) ([]AgentInfo, error) {
	runner, err := bundle.Path(ctx, bundle.Config{Explicit: cfg.Runner, Progress: cfg.tell})
	if err != nil {
		return nil, err
	}
	return askRecipes[[]AgentInfo](ctx, runner)
}

// AgentVersion asks the program of an agent in the sandbox for its version, which is
// that of the sandbox's own PATH. An agent that is not installed is fs.ErrNotExist, one
// that needs no program of its own errors.ErrUnsupported.
func (e *Environment) AgentVersion(ctx context.Context, a AgentInfo) (string, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	if a.Program == "" {
		return "", fmt.Errorf("version of %s: it has no program of its own: %w", a.Agent, errors.ErrUnsupported)
	}
	r, err := primitives.Run(ctx, e.prim, primitives.Command{Args: []string{a.Program, "--version"}, Timeout: versionTimeout}, primitives.RunOptions{})
	switch {
	case errors.Is(err, primitives.ErrCommandNotFound):
		return "", fmt.Errorf("%s is not in the sandbox: %w: %w; install it with InstallAgent", a.Agent, fs.ErrNotExist, err)
	case err != nil:
		return "", fmt.Errorf("version of %s: %w", a.Agent, err)
	case !r.Status.Success():
		return "", fmt.Errorf("version of %s: %s --version: %s: %s", a.Agent, a.Program, describe(r.Status), e.hide.Text(lastLine(r.Stderr)))
	}
	if v := versionPattern.FindString(string(r.Stdout)); v != "" {
		return v, nil
	}
	return strings.TrimSpace(string(r.Stdout)), nil
}

// versionTimeout is far above what programs take to tell their version.
const versionTimeout = time.Minute

// versionPattern finds the version in what programs say about it.
var versionPattern = regexp.MustCompile(`\d+(\.\d+)+[-+.\w]*`)

// InstallAgent installs the program of an agent in the sandbox, at the version that
// it was tested with, from the registries of Debian and npm, which the sandbox must
// reach. It does nothing where that version is installed. It reports each step to
// Config.Progress. It does not change a machine whose programs the sandbox uses
// ([primitives.IsolationNone]): errors.ErrUnsupported.
func (e *Environment) InstallAgent(ctx context.Context, a AgentInfo) error {
	v, err := e.AgentVersion(ctx, a)
	switch {
	case err == nil && v == a.Version:
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return nil // it needs nothing
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if e.prim.Capabilities().Isolation == primitives.IsolationNone {
		return fmt.Errorf("the sandbox uses the programs of its machine: %w; install %s there, for example with 'npm install --global %s'",
			errors.ErrUnsupported, a.Agent, strings.Join(a.NPM, " "))
	}
	missing, err := primitives.MissingCommands(ctx, e.prim, primitives.Spec{Env: e.cfg.Agent.Env}.Environ(), installers(a)...)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("the sandbox lacks %s: %w; make it of an image of a Debian system with npm, such as %s",
			strings.Join(missing, " and "), errors.ErrUnsupported, DefaultImage)
	}
	for _, command := range installation(a) {
		e.cfg.tell("installing " + a.Agent + ": " + firstWords(command))
		if err := e.install(ctx, command); err != nil {
			return fmt.Errorf("install %s: %w", a.Agent, err)
		}
	}
	return nil
}

// install runs a command as root where the sandbox can, else as its own user.
func (e *Environment) install(ctx context.Context, command string) error {
	cmd := primitives.Command{Args: []string{"/bin/sh", "-c", command}, User: "0"}
	for key, value := range e.cfg.Agent.Env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	r, err := primitives.Run(ctx, e.prim, cmd, primitives.RunOptions{})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		cmd.User = ""
		r, err = primitives.Run(ctx, e.prim, cmd, primitives.RunOptions{})
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !r.Status.Success():
		return fmt.Errorf("%s: %s: %s", firstWords(command), describe(r.Status), e.hide.Text(lastLine(append(r.Stdout, r.Stderr...))))
	}
	return nil
}

// firstWords are enough of a command to know it by.
func firstWords(command string) string {
	const most = 60
	if len(command) <= most {
		return command
	}
	return command[:most] + " ..."
}

// lastLine is what a failing program says at its end.
func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

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
		if r, err = askRecipe(ctx, cfg.Runner, cfg.Agent.Name); !errors.Is(err, syscall.ENOEXEC) {
			return r, err
		}
	}
	runner, err := bundle.Path(ctx, bundle.Config{Progress: cfg.tell})
	if err != nil {
		return r, fmt.Errorf("what the agent needs: %w", err)
	}
	return askRecipe(ctx, runner, cfg.Agent.Name)
}

// recipes remembers what runners said of agents, for one session asks several times:
// recipeKey to runnerscripts.Recipe. Errors are not remembered.
var recipes sync.Map

// recipeKey names a state of a runner's file, and an agent.
type recipeKey struct {
	runner, agent string
	size          int64
	changed       time.Time
}

// askRecipe asks a runner of this machine what it knows of an agent. A name that it does
// not know is [ErrConfig].
func askRecipe(ctx context.Context, runner, name string) (r runnerscripts.Recipe, err error) {
	key := recipeKey{runner: runner, agent: name}
	if info, err := os.Stat(runner); err == nil {
		key.size, key.changed = info.Size(), info.ModTime()
	}
	if known, ok := recipes.Load(key); ok {
		return known.(runnerscripts.Recipe), nil
	}
	r, err = askRecipes[runnerscripts.Recipe](ctx, runner, name)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailUnknownAgent {
		if err == nil {
			recipes.Store(key, r)
		}
		return r, err
	}
	all, err := askRecipes[[]AgentInfo](ctx, runner)
	if err != nil {
		return r, err
	}
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.Agent
	}
	advice := "there are: " + strings.Join(names, ", ")
	if meant := closest.Name(name, names); meant != "" {
		advice = "did you mean " + meant + "? " + advice
	}
	return r, fmt.Errorf("%w: agent.name: %w", ErrConfig, &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailUnknownAgent, Message: fmt.Sprintf("there is no agent %q; %s", name, advice),
	})
}

// checkAgent refuses an agent that the runner does not know. Where no runner of this
// machine can be asked it refuses nothing: the first script then says what is wrong.
func (c Config) checkAgent(ctx context.Context) error {
	if c.Agent.Name == "" || len(c.Scripts.ExecuteQuery) > 0 {
		return nil
	}
	if _, err := readRecipe(ctx, c); errors.Is(err, ErrConfig) {
		return err
	}
	return nil
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

// wantsProgram reports whether the sandbox must have the agent's own program: not if
// the configuration names another one.
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
