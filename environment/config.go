package environment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

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
	// as from a container to this machine. The agent has its mode and profile there,
	// and files and a memory that the old sandbox could write.
	Trust bool `json:"-"`
	// OnPermission decides about what the agent asks permission for. Use [AllowAll],
	// [RejectAll], or a function that looks at req.ToolCall and returns req.Allow() or
	// req.Reject(why). Nil rejects, and a log event says so. The zero decision leaves the
	// answer to [Environment.Respond]; so does [AnswerLater] for all requests.
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
	// Progress is told, in a sentence, what takes longer than a moment while the
	// sandbox is made, such as fetching an image. It may be called from any
	// goroutine. Nil tells nobody.
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
		"if you trust them, give --trust (in Go: set Config.Trust)", ErrTrust, into, c.From)
}

// check refuses what no sandbox could run.
func (c Config) check() error {
	if err := errors.Join(c.Pool.check(), checkName(c.Name)); err != nil {
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
	if err := checkPatterns(c.IgnoreChanges); err != nil {
		return fmt.Errorf("%w: ignore_changes: %w", ErrConfig, err)
	}
	for i, s := range c.Workspace {
		if err := s.check(); err != nil {
			return fmt.Errorf("%w: workspace[%d]: %w", ErrConfig, i, err)
		}
	}
	return nil
}
