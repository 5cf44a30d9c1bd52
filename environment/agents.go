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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/acpregistry"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// AgentInfo says what an agent can do and what it needs in a sandbox.
type AgentInfo = runnerscripts.Recipe

// Agents returns the agents that Agent.Name can choose, including [RegistryAgents], sorted by name.
// Of cfg it uses only Runner, which lists the others, and Progress.
func Agents(ctx context.Context, cfg Config) ([]AgentInfo, error) {
	runner, err := bundle.Path(ctx, bundle.Config{Explicit: cfg.Runner, Progress: cfg.tell})
	if err != nil {
		return nil, err
	}
	all, err := askRecipes[[]AgentInfo](ctx, runner)
	if i := slices.IndexFunc(all, func(a AgentInfo) bool { return a.Agent == acpAgent }); i >= 0 {
		all = slices.Insert(all, i+1, registryRecipes(all[i])...)
	}
	return all, err
}

// AgentVersion returns the version of an agent's program in the sandbox. It runs the program
// that the sandbox's PATH finds. The error is fs.ErrNotExist if the agent is not installed, and
// errors.ErrUnsupported if the agent needs no program of its own. An agent of the ACP registry may
// have no --version: then its version is "unknown".
func (e *Environment) AgentVersion(ctx context.Context, a AgentInfo) (string, error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	if a.Program == "" {
		return "", fmt.Errorf("version of %s: it has no program of its own: %w", a.Agent, errors.ErrUnsupported)
	}
	timeout := versionTimeout
	registered := runnerscripts.IsRegistryAgent(a.Agent)
	if registered {
		timeout = registeredVersionTimeout
	}
	r, err := primitives.Run(ctx, e.prim, primitives.Command{Args: []string{a.Program, "--version"}, Timeout: timeout}, primitives.RunOptions{})
	switch {
	case errors.Is(err, primitives.ErrCommandNotFound):
		return "", fmt.Errorf("%s is not in the sandbox: %w: %w; install it with InstallAgent", a.Agent, fs.ErrNotExist, err)
	case err != nil:
		return "", fmt.Errorf("version of %s: %w", a.Agent, err)
	case registered && (!r.Status.Success() || !versionPattern.Match(r.Stdout)):
		return "unknown", nil
	case !r.Status.Success():
		return "", fmt.Errorf("version of %s: %s --version: %s: %s", a.Agent, a.Program, r.Status, e.scripts.Events.Hide.Text(lastLine(r.Stderr)))
	}
	if v := versionPattern.FindString(string(r.Stdout)); v != "" {
		return v, nil
	}
	return strings.TrimSpace(string(r.Stdout)), nil
}

// versionTimeout is far above the time that programs take to print their version.
const versionTimeout = time.Minute

// registeredVersionTimeout is shorter, because some agents of the ACP registry ignore --version and
// wait for a client.
const registeredVersionTimeout = 10 * time.Second

// versionPattern finds the version in the output of a program's --version.
var versionPattern = regexp.MustCompile(`\d+(\.\d+)+[-+.\w]*`)

// InstallAgent installs the agent's program in the sandbox, at the version that the agent was
// tested with, or that the ACP registry names. The sandbox must reach the Debian and npm
// registries. InstallAgent does nothing if that version is installed; for an agent of the ACP
// registry, if any is, because the program may be that of another agent. It reports each step to
// Config.Progress. If the sandbox uses the programs of its machine ([primitives.IsolationNone]), or
// the agent of the ACP registry is no package of npm, InstallAgent changes nothing and returns
// errors.ErrUnsupported.
func (e *Environment) InstallAgent(ctx context.Context, a AgentInfo) error {
	v, err := e.AgentVersion(ctx, a)
	switch {
	case err == nil && (v == a.Version || runnerscripts.IsRegistryAgent(a.Agent)):
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return nil // the agent needs no program
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	caps := e.prim.Capabilities()
	if registered, ok := acpregistry.Find(a.Agent); ok && registered.NPM == "" {
		return fmt.Errorf("%s is no package of npm: %w; %s", a.Agent, errors.ErrUnsupported, registered.Advice(caps.OS, caps.Arch))
	}
	if caps.Isolation == primitives.IsolationNone {
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

// install runs a command as root, or as the sandbox's own user if it cannot run as root.
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
		return fmt.Errorf("%s: %s: %s", firstWords(command), r.Status, e.scripts.Events.Hide.Text(lastLine(append(r.Stdout, r.Stderr...))))
	}
	return nil
}

// firstWords returns the start of a command, enough to recognize it.
func firstWords(command string) string {
	const most = 60
	if len(command) <= most {
		return command
	}
	return command[:most] + " ..."
}

// lastLine returns the last line of a program's output, which usually states the error.
func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// askRecipes asks a runner of this machine for the recipe of the named agent, or for those of
// all agents.
func askRecipes[T any](ctx context.Context, runner string, agent ...string) (T, error) {
	out, err := askRunner(ctx, runner, agent...)
	var none T
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Err: err}
	}
	// Ignore the exit status: the result says more.
	var result runnerscripts.Result
	if jerr := json.Unmarshal(out, &result); jerr != nil {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Err: errors.Join(err, jerr)}
	}
	if !result.OK {
		return none, &ScriptError{Script: runnerscripts.PrintRecipe, Failure: result.Error, Err: script.ErrNoReason}
	}
	return script.Data[T](runnerscripts.PrintRecipe, result)
}

// readRecipe returns what the agent needs in a sandbox. An unknown name is [ErrConfig].
func readRecipe(ctx context.Context, cfg Config) (r runnerscripts.Recipe, err error) {
	if err := cfg.checkRunner(); err != nil {
		return r, err
	}
	if !strings.HasPrefix(cfg.Agent.Name, runnerscripts.RegistryPrefix) {
		return recipeOfRunner(ctx, cfg)
	}
	registered, ok := acpregistry.Find(cfg.Agent.Name)
	if !ok {
		return r, unknownAgent(cfg.Agent.Name, RegistryAgents())
	}
	if r, err = recipeOfRunner(ctx, cfg); err != nil {
		return r, err
	}
	return registered.Complete(r), nil
}

// recipeOfRunner asks the runner for the recipe of an agent. If the configured runner is for
// another platform, recipeOfRunner asks the runner of this machine, which gives the same answer.
func recipeOfRunner(ctx context.Context, cfg Config) (r runnerscripts.Recipe, err error) {
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

// recipes caches the answers of runners, because one session asks several times. It maps
// recipeKey to runnerscripts.Recipe. Errors are not cached.
var recipes sync.Map

// recipeKey identifies a state of a runner's file, and an agent.
type recipeKey struct {
	runner, agent string
	size          int64
	changed       time.Time
}

// askRecipe asks a runner of this machine for the recipe of an agent. An unknown name is
// [ErrConfig].
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
	return r, unknownAgent(name, names)
}

// unknownAgent returns the error for a name that is not among these.
func unknownAgent(name string, names []string) error {
	advice := "there are: " + strings.Join(names, ", ")
	meant := closest.Name(name, names)
	if registered := runnerscripts.RegistryPrefix + name; meant == "" && slices.Contains(RegistryAgents(), registered) {
		meant = registered
	}
	if strings.HasPrefix(name, ExecutorPrefix) {
		advice = "FindExecutor returns the agent of an executor profile"
	} else if meant != "" {
		advice = "did you mean " + meant + "? " + advice
	}
	return fmt.Errorf("%w: agent.name: %w", ErrConfig, &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailUnknownAgent, Message: fmt.Sprintf("there is no agent %q; %s", name, advice),
	})
}

// checkAgent returns [ErrConfig] for an agent that the runner does not know, or that does not
// support what it is asked for. If this machine cannot run any runner, checkAgent returns nil: the
// first script then reports the error.
func (c Config) checkAgent(ctx context.Context) error {
	if c.Agent.Name == "" || len(c.Scripts.ExecuteQuery) > 0 {
		return nil
	}
	r, err := readRecipe(ctx, c)
	switch {
	case errors.Is(err, ErrConfig):
		return err
	case err != nil:
		return nil
	}
	if c.hasTools() && !slices.Contains(r.Supports, runnerscripts.FeatureMCPHTTP) {
		return fmt.Errorf("%w: delegation: the agent %q uses no MCP servers over HTTP, by which an agent starts others; leave it out, or choose another agent", ErrConfig, c.Agent.Name)
	}
	if _, err := r.Resolve(c.Agent, c.Profile); err != nil && len(c.Scripts.SetupSession) == 0 { // which may give it more
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// CheckAttachments returns the attachments of a prompt for the configured agent with the names and
// media types that they lack. Besides the errors of runnerscripts.CheckAttachments there is
// errors.ErrUnsupported, for what the agent does not accept. An agent of ACP says what it accepts when
// it starts; what it does not accept then fails the query. If Config.Scripts replaces execute-query,
// or this machine cannot run any runner, only the script can refuse.
func (c Config) CheckAttachments(ctx context.Context, list []runnerscripts.Attachment) ([]runnerscripts.Attachment, error) {
	if len(list) == 0 {
		return nil, nil
	}
	list, err := runnerscripts.CheckAttachments(list)
	if err != nil || c.Agent.Name == "" || len(c.Scripts.ExecuteQuery) > 0 {
		return list, err
	}
	r, err := readRecipe(ctx, c)
	switch {
	case errors.Is(err, ErrConfig):
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return list, nil
	}
	if err := r.Accept(list); err != nil {
		return nil, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return list, nil
}

// askRunner returns the output of the runner, which needs no variable of this program's
// environment.
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

// wantsProgram reports whether the sandbox must have the agent's own program: false if the
// configuration names another program.
func (c Config) wantsProgram() bool {
	return c.Agent.Name != "" && len(c.Agent.Command) == 0 && len(c.Scripts.ExecuteQuery) == 0
}

// installers returns the commands that install the packages of a recipe.
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

// aptGet keeps apt-get from changing its user, which fails in a container without capabilities.
const aptGet = "apt-get -o APT::Sandbox::User=root "

// installation returns the shell commands that install the packages of a recipe. They leave no
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
