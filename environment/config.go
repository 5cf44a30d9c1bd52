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
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Agent says which agent to run and how.
type Agent = runnerscripts.Agent

// Config says what an environment is made of. Only Agent.Name is required, where an
// agent is to run, and for [Create] the Sandbox.
type Config struct {
	// Name is what people call the sandbox, beside its ID: [List] returns it. It has up
	// to 63 letters, digits, '_', '.' and '-', and no two sandboxes of a user on a
	// machine have the same. Only [Create] looks at it.
	Name string `json:"name,omitempty"`
	// Sandbox chooses where the agent runs. Only [Create] and [Attach] look at
	// it. With Sandbox.Keep, a query goes on when the environment is closed, with its
	// input in the sandbox: whatever runs there as the agent's user can reach it,
	// and so answer permission requests. The sandbox is what keeps an agent in.
	Sandbox Sandbox `json:"sandbox,omitzero"`
	// Pool is for [NewPool] only.
	Pool PoolConfig `json:"pool,omitzero"`
	// Agent chooses what runs in it. Its Name may be empty if only files and
	// commands of the sandbox are wanted. Its Env is for the runner scripts and the
	// agent alone, and written down nowhere; the environment of all commands is a setting
	// of the Sandbox. Nothing of the host's environment reaches either.
	//
	// Secrets among the values are shown as "[redacted]" in events, log records and
	// errors: those of names such as API_KEY, GITHUB_TOKEN or PASSWORD, tokens of
	// well-known vendors, and the credentials in URLs, from 8 bytes on. That
	// prevents accidents; it does not keep a secret from an agent that encodes it.
	Agent Agent `json:"agent,omitzero"`
	// Credentials name keys of models' APIs that stay on this machine: the agent gets a
	// token of its session and the address of a gateway inside its sandbox, which puts
	// the keys into its requests. They are named anthropic, openai and gemini, or have an API.
	// A key in Agent.Env comes before that of the same API here.
	Credentials map[string]Credential `json:"credentials,omitempty"`
	// Budget bounds what the agent uses. A query that uses more ends with a [*BudgetError].
	// All but the time is counted at the gateway, and needs Credentials.
	Budget Budget `json:"budget,omitzero"`
	// Used is what the session has used before, in other sandboxes; it counts for
	// Budget.Session. [Environment.Move] and package session set it.
	Used Used `json:"-"`
	// Models says which models the agent may use through the gateway, and which tools the models' APIs
	// may run themselves, such as a web search: without a word about them all in a sandbox with a
	// network, and none in one without.
	Models ModelPolicy `json:"models,omitzero"`
	// Record is a file on this machine to which the calls of models and their answers are
	// added, without keys. Replay is such a file: it answers in place of the models, in any
	// sandbox and without Credentials. A call that it lacks ends the query with a [*NoMatchError].
	Record string `json:"record,omitempty"`
	Replay string `json:"replay,omitempty"`
	// Profile makes the agent a particular one. In a file it may be the path of
	// what [LoadProfile] reads.
	Profile Profile `json:"profile,omitzero"`
	// Workspace says what the workspace starts with. The sources are placed in
	// their order, later ones over earlier ones.
	Workspace []Source `json:"workspace,omitempty"`
	// IgnoreChanges names what is no part of [Environment.Changes] and
	// [Environment.Patch], in the syntax of primitives.WatchOptions.Ignore:
	// folders of dependencies, for example. What is in .git never is.
	IgnoreChanges []string `json:"ignore_changes,omitempty"`
	// SessionID names the conversation; it should be a UUID, because some
	// agents take nothing else. Empty means a new one.
	SessionID string `json:"session_id,omitempty"`
	// From is how isolated the sandbox was that has written the Workspace or the
	// agent's memory: a less isolated new sandbox is [ErrTrust]. Empty means that no
	// sandbox has written them. [Environment.Move] and package session set it.
	From primitives.Isolation `json:"-"`
	// Trust lets a session go on in a sandbox that is less isolated than From says,
	// as from a container to this machine. It is not Agent.TrustWorkspace, which is about
	// the settings, hooks and MCP servers that a repository brings. The agent has its mode and profile there,
	// and files and a memory that the old sandbox could write.
	Trust bool `json:"-"`
	// OnPermission decides about what the agent asks permission for. Use [AllowAll],
	// [RejectAll], or a function that looks at req.ToolCall and returns req.Allow() or
	// req.Reject(why). Nil rejects, and so does a decision that the request does not offer;
	// a log event says so. The zero decision leaves the answer to [Environment.Respond]; so
	// does [AnswerLater] for all requests.
	//
	// It is called once for each request, several at once if need be. Its ctx is done
	// when the request was answered otherwise or withdrawn, or its time has run out;
	// OnPermission must return then.
	OnPermission func(ctx context.Context, req PermissionRequest) PermissionDecision `json:"-"`
	// PermissionTimeout is how long a request waits before it is rejected. Zero means
	// DefaultPermissionTimeout, a negative one for ever.
	PermissionTimeout time.Duration `json:"-"`
	// Raw asks for the agent's own lines too, as runnerscripts.TypeRaw events.
	Raw bool `json:"raw,omitempty"`
	// Runner is the path on this machine of the envrunner binary for the
	// sandbox's platform. Empty means: found by package bundle when the first
	// script is called.
	Runner string `json:"runner,omitempty"`
	// Scripts replaces runner scripts by commands of the sandbox.
	Scripts Scripts `json:"scripts,omitzero"`
	// Progress gets a sentence about each step that takes longer than a moment while
	// the sandbox is created, such as fetching an image. It may be called from any
	// goroutine. Nil reports nothing.
	Progress func(message string) `json:"-"`
	// Logger takes diagnostics; nil means silence. Neither prompts nor
	// secrets are logged.
	Logger hclog.Logger `json:"-"`
}

// Scripts holds commands that replace runner scripts: a program and its
// arguments, run in the workspace. An empty one means the script of envrunner.
// What such a command has to do is described by package runnerscripts.
type Scripts struct {
	SetupSession   []string `json:"setup_session,omitempty"`
	ExecuteQuery   []string `json:"execute_query,omitempty"`
	ReadTranscript []string `json:"read_transcript,omitempty"`
}

// tell passes on what takes longer than a moment.
func (c Config) tell(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
	if c.Logger != nil {
		c.Logger.Info(message)
	}
}

// admit refuses a sandbox that is less isolated than the one that has written what is to
// be placed there.
func (c Config) admit(p primitives.EnvironmentPrimitive) error {
	into := p.Capabilities().Isolation
	if c.From == "" || c.Trust || into.AtLeast(c.From) {
		return nil
	}
	return fmt.Errorf("%w: its isolation from this machine is %q, and the workspace and the agent's memory were written where it was %q; "+
		"if you trust them, set Config.Trust", ErrTrust, into, c.From)
}

// Check returns the error of [Create] that needs no sandbox, as one of a folder of the
// Workspace or an agent that does not exist: most are [ErrConfig]. It neither looks for a
// sandbox of the type nor makes one. Where there is no runner for this machine yet, it
// builds one, which can take a minute: Create needs it too.
func (c Config) Check(ctx context.Context) error {
	if err := errors.Join(c.check(), c.Sandbox.check(), findSources(c.Workspace)); err != nil {
		return err
	}
	if c.Pool != (PoolConfig{}) {
		return fmt.Errorf("%w: pool: a pool outlives its environments; leave it out, or make a pool with NewPool and the environment with that", ErrConfig)
	}
	return errors.Join(c.checkRunner(), c.checkAgent(ctx))
}

// check refuses what no sandbox could run.
func (c Config) check() error {
	if err := errors.Join(c.Pool.check(), checkName(c.Name), c.checkGateway()); err != nil {
		return err
	}
	if err := c.Profile.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for key := range c.Agent.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return fmt.Errorf("%w: agent.env: %q cannot be the name of a variable", ErrConfig, key)
		}
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

// LoadConfig reads a configuration from a YAML or JSON file. Relative paths of
// this machine in it are relative to the file's folder. A pipe or a device is
// primitives.ErrNotRegular: read it and call [ParseConfig]. More than 4 MiB are
// primitives.ErrLimit. Errors beside those of reading are [ErrConfig], as from
// [ParseConfig].
//
// There are short forms: "agent: claude", and in the workspace "folder: .", which leaves out
// what git ignores, "git: URL#REF" and "tar: FILE".
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

// ParseConfig decodes a configuration in YAML or JSON. It is strict: a key that
// does not exist or stands twice, a value of another type, and a second document
// are [ErrConfig], and the message says where. A profile that is a path is read by
// [LoadProfile], a relative one is relative to the working directory; or it is the name of one
// of [Profiles]. Other relative paths become absolute, from the working directory.
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

// parseConfig decodes a configuration of a file, if it is in one, whose profile may have the
// name of one or a path relative to dir.
func parseConfig(data []byte, file, dir string) (Config, error) {
	asJSON, err := configfile.ToJSON(data)
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
	if err := cfg.check(); err != nil {
		return Config{}, err
	}
	if cfg.Sandbox.Type != "" {
		if err := cfg.Sandbox.check(); err != nil {
			return Config{}, err
		}
	}
	return cfg, nil
}

// cutProfile takes a profile that is a path out of a configuration.
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

// expandShort writes short forms out: the name of an agent, and what a source is, as the
// flags of envctl have them.
func expandShort(data []byte) ([]byte, error) {
	var tree map[string]any
	if json.Unmarshal(data, &tree) != nil {
		return data, nil // which is refused later
	}
	if name, ok := tree["agent"].(string); ok {
		tree["agent"] = map[string]any{"name": name}
	}
	if text, ok := tree["workspace"].(string); ok {
		return nil, fmt.Errorf("%w: workspace: it is a list of sources, not a text; give one, as in 'workspace: [{folder: %[2]s}]', "+
			"or, for a folder of this machine that the agent itself works in, 'sandbox: {type: docker, workspace: %[2]s}'", ErrConfig, text)
	}
	sources, _ := tree["workspace"].([]any)
	for _, one := range sources {
		source, _ := one.(map[string]any)
		if path, ok := source["folder"].(string); ok {
			source["folder"] = map[string]any{"path": path, "gitignore": true}
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
	for typ, block := range c.Sandbox.blocks() {
		p, ok := block.(primitives.PathHolder)
		if !ok {
			continue
		}
		spec := &primitives.Spec{} // whose paths are of the chosen type
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

// Profile makes a general agent a particular one: instructions, skills, servers
// of tools, limits.
type Profile = runnerscripts.Profile

// LoadProfile reads a profile from a YAML or JSON file, or from a folder. A folder
// has the layout that Claude Code has in a project: CLAUDE.md or AGENTS.md, and
// beside them or in its folder .claude the folders rules, skills, commands and
// agents, settings.json with permissions and hooks, and .mcp.json. A profile.yaml
// or profile.json in the folder says the rest, such as the model.
//
// What is wrong in the files is [ErrConfig], and the message says where. Symbolic
// links that lead out of the folder are refused, and so are pipes, devices and files
// of more than 4 MiB.
func LoadProfile(name string) (Profile, error) { return reader.LoadProfile(name) }

// reader reads files of configurations and profiles.
var reader = configfile.Reader{Config: reflect.TypeFor[Config]()}
