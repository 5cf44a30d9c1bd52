package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Checkpoints says which files of the workspace the checkpoints of package session have. The zero value means all.
type Checkpoints struct {
	// Ignore leaves out files that match one of these patterns, in the syntax of primitives.WatchOptions.Ignore: folders
	// of dependencies that can be installed again, for example. A sandbox that begins with a checkpoint lacks them.
	Ignore []string `json:"ignore,omitempty"`
	// MaxSize is how large the files of a checkpoint may be together, without holes. A checkpoint of a larger workspace
	// has no files and says so. Zero means no limit other than those of the session and of its store.
	MaxSize primitives.Size `json:"max_size,omitempty"`
}

// Agent says which agent to run and how.
type Agent = runnerscripts.Agent

// Config describes an environment. Only Agent.Name is required to run an agent, and for [Create]
// the Sandbox.
type Config struct {
	// Name is the name that users give the sandbox, beside its ID: [List] returns it. It has up
	// to 63 letters, digits, '_', '.' and '-'. No two sandboxes of a user on a machine have the
	// same name. Only [Create] uses it.
	Name string `json:"name,omitempty"`
	// Sandbox chooses where the agent runs. Only [Create] and [Attach] use it. With
	// Sandbox.Keep, a query can outlive this program, so its input is in the sandbox: any
	// process that runs there as the agent's user can write to it, and so answer permission
	// requests. Only the sandbox confines the agent.
	Sandbox Sandbox `json:"sandbox,omitzero"`
	// Pool is for [NewPool] only.
	Pool PoolConfig `json:"pool,omitzero"`
	// Agent chooses the agent that runs in the sandbox. Its Name may be empty if the caller
	// needs only files and commands of the sandbox. Its Env is for the runner scripts and the
	// agent alone, and is never stored; the environment of all commands is a setting of the
	// Sandbox. No variable of the host's environment reaches either.
	//
	// Events, log records and errors show secrets among the values as "[redacted]": values of
	// variables such as API_KEY, GITHUB_TOKEN or PASSWORD, tokens of well-known vendors, and
	// credentials in URLs, from 8 bytes on. This prevents accidents; it does not keep a secret
	// from an agent that encodes it.
	Agent Agent `json:"agent,omitzero"`
	// Credentials name keys of model APIs that stay on this machine. The agent gets a token of
	// its session and the address of a gateway inside its sandbox, and the gateway adds the keys
	// to the requests. A credential is named anthropic, openai or gemini, or sets its API. A key
	// in Agent.Env takes precedence over the credential of the same API.
	Credentials map[string]Credential `json:"credentials,omitempty"`
	// Deliver names those of Credentials that an executor may get itself, just in time, with get_api_key
	// of its JSON-RPC; see package executor/rpc. Every delivery is logged. Empty delivers none: a key
	// stays on this machine.
	Deliver []string `json:"deliver,omitempty"`
	// Budget limits what the agent uses. A query that uses more ends with a [*BudgetError]. The
	// gateway counts everything except the time, so those limits need Credentials.
	Budget Budget `json:"budget,omitzero"`
	// Models says which models the agent may use through the gateway, and which tools the model
	// APIs may run themselves, such as a web search. By default they may run all tools for a
	// sandbox with a network, and none for one without.
	Models ModelPolicy `json:"models,omitzero"`
	// Coordinator is an agent coordinator that executors in the sandbox reach through the gateway,
	// without having its key. All commands get the address and the session's ID, in the variables
	// AGENT_ORCHESTRATOR_API_URL and AGENT_SESSION_ID.
	Coordinator Coordinator `json:"coordinator,omitzero"`
	// Record is a file on this machine to which the gateway appends the model calls and their
	// answers, without keys. Replay is such a file: the gateway answers from it instead of
	// calling the models, in any sandbox and without Credentials. A call that the file lacks
	// ends the query with a [*NoMatchError].
	Record string `json:"record,omitempty"`
	Replay string `json:"replay,omitempty"`
	// Profile adapts the agent to a task. In a file it may be a path for [LoadProfile], or the
	// name of one of [Profiles].
	Profile Profile `json:"profile,omitzero"`
	// Delegation names agents that the agent may start, with the tools of AgentTools. It may do so within its Budget, which
	// counts for all of them, and they have its Permissions beside their own. They end with the environment. Without
	// AgentTools the agent has no such tools, and a log record says so.
	Delegation Delegation `json:"delegation,omitzero"`
	// AgentTools returns the tools for Delegation. It is called when a sandbox is opened, and ctx covers the call only. Nil
	// means none. A session does not store it: set it again when you open it.
	AgentTools func(ctx context.Context, of Delegator) (AgentTools, error) `json:"-"`
	// Workspace says what the workspace starts with. The sources are placed in order; later ones
	// overwrite earlier ones.
	Workspace []Source `json:"workspace,omitempty"`
	// Checkpoints says which files the checkpoints of a session have.
	Checkpoints Checkpoints `json:"checkpoints,omitzero"`
	// IgnoreChanges names files that [Environment.Changes], [Environment.Patch] and
	// [Environment.Apply] leave out, in the syntax of primitives.WatchOptions.Ignore: folders of
	// dependencies, for example. Files under .git are never reported.
	IgnoreChanges []string `json:"ignore_changes,omitempty"`
	// SessionID names the conversation. It should be a UUID, because some agents accept nothing
	// else. Empty means a new one.
	SessionID string `json:"session_id,omitempty"`
	// Session is what is known of the session that this environment continues. [Environment.Move] and packages session and
	// server set it; a session that begins has none.
	Session SessionState `json:"-"`
	// Trust lets a session continue in a sandbox that is less isolated than Session.From, for example on
	// this machine after a container. The agent then has its mode and profile there, together
	// with files and a memory that the old sandbox could write. Trust is not
	// Agent.TrustWorkspace, which concerns the settings, hooks and MCP servers that a repository
	// brings.
	Trust bool `json:"-"`
	// Permissions decide about the agent's permission requests before OnPermission, by rules such as
	// Bash(git *) that are the same for all agents; see package permission. What they do not decide
	// is asked. With them the agent has the mode in which it asks, and an answer for the session
	// holds for the same call until the environment is closed.
	Permissions permission.Rules `json:"permissions,omitzero"`
	// PermissionLimits are further rules, of a program for all its sessions: the stricter decision
	// counts, see permission.Policy.Narrow. A session does not store them: set them again when you open it.
	PermissionLimits permission.Rules `json:"-"`
	// OnPermission answers the agent's permission requests. Use [AllowAll], [RejectAll], or a
	// function that looks at req.ToolCall and returns req.Allow() or req.Reject(why). Nil
	// rejects, and so does a decision that the request does not offer; a log event says so. The
	// zero decision leaves the answer to [Environment.Respond]; [AnswerLater] does so for all
	// requests.
	//
	// OnPermission is called once for each request, and concurrently for concurrent requests.
	// Its ctx is done when the request was answered otherwise, was withdrawn, or timed out;
	// OnPermission must return then.
	OnPermission func(ctx context.Context, req PermissionRequest) PermissionDecision `json:"-"`
	// PermissionTimeout is how long a request waits for an answer before it is rejected. Zero
	// means DefaultPermissionTimeout; negative means no timeout.
	PermissionTimeout time.Duration `json:"-"`
	// Raw adds the agent's own output lines, as runnerscripts.TypeRaw events.
	Raw bool `json:"raw,omitempty"`
	// Runner is the path on this machine of the envrunner binary for the sandbox's platform. If
	// it is empty, package bundle finds the binary when the first script is called.
	Runner string `json:"runner,omitempty"`
	// Scripts replaces runner scripts with commands of the sandbox.
	Scripts Scripts `json:"scripts,omitzero"`
	// Progress gets a sentence about each slow step of creating the sandbox, such as fetching an
	// image. It may be called from any goroutine. Nil reports nothing.
	Progress func(message string) `json:"-"`
	// Logger receives diagnostics; nil discards them. Prompts and secrets are never logged.
	Logger hclog.Logger `json:"-"`
}

// Scripts holds commands that replace runner scripts: a program and its arguments, run in the
// workspace. An empty command means the script of envrunner. Package runnerscripts specifies
// what such a command must do.
type Scripts struct {
	SetupSession   []string `json:"setup_session,omitempty"`
	ExecuteQuery   []string `json:"execute_query,omitempty"`
	ReadTranscript []string `json:"read_transcript,omitempty"`
}

// byName returns the commands by the names of the scripts that they replace.
func (s Scripts) byName() map[string][]string {
	return map[string][]string{
		runnerscripts.SetupSession:   s.SetupSession,
		runnerscripts.ExecuteQuery:   s.ExecuteQuery,
		runnerscripts.ReadTranscript: s.ReadTranscript,
	}
}

// tell reports a slow step to Progress and Logger.
func (c Config) tell(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
	if c.Logger != nil {
		c.Logger.Info(message)
	}
}

// admit returns [ErrTrust] if the sandbox is less isolated than the sandbox that wrote the
// workspace or the agent's memory.
func (c Config) admit(p primitives.EnvironmentPrimitive) error {
	into := p.Capabilities().Isolation
	if c.Session.From == "" || c.Trust || into.AtLeast(c.Session.From) {
		return nil
	}
	return fmt.Errorf("%w: its isolation from this machine is %q, and the workspace and the agent's memory were written where it was %q; "+
		"if you trust them, set Config.Trust", ErrTrust, into, c.Session.From)
}

// Check returns those errors of [Create] that need no sandbox, such as a Workspace folder or an
// agent that does not exist, a profile that the agent does not support, and settings that a
// primitives.SpecChecker refuses. Most are [ErrConfig]. Check neither looks for a sandbox of the
// type nor creates one. If there is no runner for this machine yet, Check builds one, which can
// take a minute: Create needs it too.
func (c Config) Check(ctx context.Context) error {
	if err := errors.Join(c.check(), c.Sandbox.check(), findSources(c.Workspace)); err != nil {
		return err
	}
	if c.Pool != (PoolConfig{}) {
		return fmt.Errorf("%w: pool: a pool outlives its environments; leave it out, or make a pool with NewPool and the environment with that", ErrConfig)
	}
	return errors.Join(c.checkSandbox(), c.checkRunner(), c.checkAgent(ctx))
}

// check returns an error for a configuration that no sandbox could run.
func (c Config) check() error {
	if err := c.checkValues(); err != nil {
		return err
	}
	return c.checkCounted()
}

// checkValues returns an error for values that are wrong whatever a caller may add.
func (c Config) checkValues() error {
	if err := errors.Join(c.Pool.check(), kept.CheckName(c.Name), c.checkGateway(), c.checkDelegation()); err != nil {
		return err
	}
	if err := c.Profile.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.checkPermissions(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, err := c.schemas(); err != nil {
		return err
	}
	for key := range c.Agent.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return fmt.Errorf("%w: agent.env: %q cannot be the name of a variable", ErrConfig, key)
		}
	}
	if err := workspace.CheckPatterns(c.Checkpoints.Ignore); err != nil {
		return fmt.Errorf("%w: checkpoints: ignore: %w", ErrConfig, err)
	}
	if err := workspace.CheckPatterns(c.IgnoreChanges); err != nil {
		return fmt.Errorf("%w: ignore_changes: %w", ErrConfig, err)
	}
	for i, s := range c.Workspace {
		if err := s.check(); err != nil {
			return fmt.Errorf("%w: workspace[%d]: %w", ErrConfig, i, err)
		}
	}
	return nil
}

// LoadConfig reads a configuration from a YAML or JSON file. Relative paths of this machine in
// it are relative to the file's folder. A pipe or a device is primitives.ErrNotRegular: read it
// and call [ParseConfig]. A file of more than 4 MiB is primitives.ErrLimit. Errors other than
// those of reading are [ErrConfig], as from [ParseConfig].
//
// The file may use short forms: "agent: claude", the file of an agent of the delegation, and, in the workspace, "folder: .", which leaves
// out files that git ignores and brings the history, "git: URL#REF" and "tar: FILE".
func LoadConfig(name string) (Config, error) {
	data, err := input.ReadFile(name, configfile.MaxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, fmt.Errorf("configuration %s: %w", name, fs.ErrNotExist)
	case err != nil:
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return Config{}, err
	}
	cfg, err := parseConfig(data, name, dir)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	cfg.resolve(dir)
	for i := range cfg.Workspace {
		cfg.Workspace[i].config = name
	}
	return cfg, nil
}

// ParseConfig decodes a configuration in YAML or JSON. It is strict: an unknown or duplicate
// key, a value of another type, and a second document are [ErrConfig], and the message says
// where. The profile may be a path that [LoadProfile] reads, relative to the working directory,
// or the name of one of [Profiles]. Other relative paths become absolute, from the working
// directory.
func ParseConfig(data []byte) (Config, error) {
	cfg, err := parseConfig(data, "", "")
	if err != nil {
		return Config{}, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return Config{}, err
	}
	cfg.resolve(dir)
	return cfg, nil
}

// FormatConfig returns a configuration as JSON that [ParseConfig] reads. It leaves out what a file
// cannot hold, such as functions and loggers.
func FormatConfig(cfg Config) ([]byte, error) {
	settings, err := configfile.Settings(cfg)
	if err != nil {
		return nil, fmt.Errorf("format the configuration: %w", err)
	}
	return json.Marshal(settings)
}

// parseConfig decodes a configuration. file is the file that holds it, empty for none. The
// profile may be a name from the catalog or a path relative to dir.
func parseConfig(data []byte, file, dir string) (Config, error) {
	asJSON, err := configfile.ToJSON(file, data)
	if err != nil {
		return Config{}, err
	}
	if asJSON, err = expandShort(asJSON); err != nil {
		return Config{}, err
	}
	asJSON, profile := cutProfile(asJSON)
	var cfg Config
	if err := reader.Decode(asJSON, &cfg, ""); err != nil {
		return Config{}, err
	}
	if profile != "" {
		where := profile
		if !filepath.IsAbs(profile) {
			where = filepath.Join(dir, profile)
		}
		if cfg.Profile, err = reader.FindProfile(where, profile, catalog(file)); err != nil {
			return Config{}, err
		}
	}
	if err := cfg.resolveExecutor(file, dir); err != nil {
		return Config{}, err
	}
	if err := cfg.checkValues(); err != nil {
		return Config{}, err
	}
	if cfg.Sandbox.Type != "" {
		if err := cfg.Sandbox.check(); err != nil {
			return Config{}, err
		}
	}
	return cfg, nil
}

// cutProfile removes a profile that is a path from a configuration, and returns both.
func cutProfile(data []byte) (rest []byte, path string) {
	var tree map[string]json.RawMessage
	if json.Unmarshal(data, &tree) != nil || json.Unmarshal(tree["profile"], &path) != nil || path == "" {
		return data, ""
	}
	delete(tree, "profile")
	rest, err := json.Marshal(tree)
	if err != nil {
		return data, ""
	}
	return rest, path
}

// expandShort expands the short forms: the name of an agent, and sources in the form of envctl's
// flags.
func expandShort(data []byte) ([]byte, error) {
	var tree map[string]any
	if json.Unmarshal(data, &tree) != nil {
		return data, nil // parseConfig refuses it later
	}
	if name, ok := tree["agent"].(string); ok {
		tree["agent"] = map[string]any{"name": name}
	}
	if text, ok := tree["workspace"].(string); ok {
		return nil, fmt.Errorf("%w: workspace: it is a list of sources, not a text; give one, as in 'workspace: [{folder: %[2]s}]', "+
			"or, for a folder of this machine that the agent itself works in, 'sandbox: {type: docker, workspace: %[2]s}'", ErrConfig, text)
	}
	if delegation, ok := tree["delegation"].(map[string]any); ok {
		agents, _ := delegation["agents"].(map[string]any)
		for name, one := range agents {
			if file, ok := one.(string); ok {
				agents[name] = map[string]any{"config": file}
			}
		}
	}
	sources, _ := tree["workspace"].([]any)
	for _, one := range sources {
		source, _ := one.(map[string]any)
		if path, ok := source["folder"].(string); ok {
			source["folder"] = map[string]any{"path": path, "gitignore": true, "history": true}
		}
		if address, ok := source["git"].(string); ok {
			url, ref, _ := strings.Cut(address, "#")
			source["git"] = map[string]any{"url": url, "ref": ref}
		}
		if path, ok := source["tar"].(string); ok {
			source["tar"] = map[string]any{"path": path}
		}
	}
	return json.Marshal(tree)
}

// resolve makes relative paths of this machine absolute.
func (c *Config) resolve(dir string) {
	abs := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	abs(&c.Runner)
	abs(&c.Record)
	abs(&c.Replay)
	for name, credential := range c.Credentials {
		abs(&credential.File)
		c.Credentials[name] = credential
	}
	abs(&c.Coordinator.Credential.File)
	if c.Coordinator.OAuth2 != nil {
		abs(&c.Coordinator.OAuth2.Credential.File)
	}
	for name, delegate := range c.Delegation.Agents {
		abs(&delegate.Config)
		c.Delegation.Agents[name] = delegate
	}
	for _, typ := range primitives.Types() {
		p, ok := c.Sandbox.of(typ).(primitives.PathHolder)
		if !ok {
			continue
		}
		spec := &primitives.Spec{} // empty: the paths in c.Sandbox.Spec are of the chosen type
		if typ == c.Sandbox.Type {
			spec = &c.Sandbox.Spec
		}
		for _, p := range p.HostPaths(spec) {
			abs(p)
		}
	}
	for _, s := range c.Workspace {
		switch {
		case s.Folder != nil:
			abs(&s.Folder.Path)
		case s.Tar != nil:
			abs(&s.Tar.Path)
		case s.Git != nil && (s.Git.URL == "." || s.Git.URL == ".." || strings.HasPrefix(s.Git.URL, "./") || strings.HasPrefix(s.Git.URL, "../")):
			abs(&s.Git.URL)
		}
	}
}

// reader reads files of configurations and profiles.
var reader = configfile.Reader{Config: reflect.TypeFor[Config](), Blocks: blockTypes}
