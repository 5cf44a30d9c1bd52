package executor

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Procedural is the type of a profile whose program is no agent: it gets parameters as arguments,
// prints a result and ends. Other types are names of the user's own.
const Procedural = "procedural"

// Lifecycle says how long an executor's process lives.
type Lifecycle string

// The lifecycles.
const (
	OneShot    Lifecycle = "one_shot"   // a process for each prompt; the default
	Persistent Lifecycle = "persistent" // one process, which gets a line for each prompt
)

// DefaultTimeout ends a procedural executor unless its profile says otherwise.
const DefaultTimeout = 5 * time.Minute

// maxTimeoutSeconds is a year.
const maxTimeoutSeconds = 365 * 24 * 60 * 60

// TimeoutStatus is the return_code of a procedural executor that the time-out ended, as that of
// timeout(1).
const TimeoutStatus = 124

// Command is a program and its arguments. In JSON, a string is a program without arguments.
type Command []string

// UnmarshalJSON decodes a string or a list of strings.
func (c *Command) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*c = make(Command, 1)
		return json.Unmarshal(data, &(*c)[0])
	}
	return json.Unmarshal(data, (*[]string)(c))
}

// Profile describes an executor: the content of a file such as profiles/echo.json, and the
// agent.config of the agent "command".
type Profile struct {
	// Type is [Procedural] or a name of the user's own. It is the name in agent_blueprint. A file must
	// have it.
	Type string `json:"type,omitempty"`
	// Command is the program to run in the sandbox. A word of it that is the path of one of Files
	// becomes that file's path in the sandbox.
	Command Command `json:"command,omitempty"`
	// Config is passed to the executor unchanged, as executor_config.
	Config json.RawMessage `json:"config,omitempty"`
	// Lifecycle is one_shot, the default, or persistent.
	Lifecycle Lifecycle `json:"lifecycle,omitempty"`
	// Files are written into the sandbox, outside of the workspace. In a file of a profile they are
	// paths relative to it, of files and folders.
	Files []runnerscripts.WorkspaceFile `json:"files,omitempty"`
	// ParametersSchema is the JSON schema of the parameters. With it, and for a procedural executor,
	// a prompt is a JSON object with the parameters. Else the parameters are {"prompt": TEXT}.
	ParametersSchema json.RawMessage `json:"parameters_schema,omitempty"`
	// OutputSchema is the JSON schema of the result. A result that does not match fails the query.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// TimeoutSeconds ends a procedural executor; zero means [DefaultTimeout].
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// RPC lets the executor use the JSON-RPC of its host, at the address in AGENTENV_EXECUTOR_URL with
	// the token in AGENTENV_SESSION_TOKEN; see package executor/rpc.
	RPC bool `json:"rpc,omitempty"`
}

// Check returns what is wrong with a profile, but for its schemas. Errors are fs.ErrInvalid and name
// the field.
func (p Profile) Check() error {
	invalid := func(field, format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", field, fs.ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case len(p.Command) == 0 || strings.TrimSpace(p.Command[0]) == "":
		return invalid("command", "it is empty; name the executor's program, such as [python3, executor.py]")
	case p.Lifecycle != "" && p.Lifecycle != OneShot && p.Lifecycle != Persistent:
		return invalid("lifecycle", "it is %q; give %s or %s", p.Lifecycle, OneShot, Persistent)
	case p.Lifecycle == Persistent && p.Type == Procedural:
		return invalid("lifecycle", "a procedural executor ends with its result; leave the lifecycle out")
	case p.TimeoutSeconds < 0 || p.TimeoutSeconds > maxTimeoutSeconds:
		return invalid("timeout_seconds", "it is %d; give a number from 1 to %d", p.TimeoutSeconds, maxTimeoutSeconds)
	case p.TimeoutSeconds > 0 && p.Type != Procedural:
		return invalid("timeout_seconds", "it is for the type procedural only; limit a query with envctl --timeout or the end of its context")
	}
	for i, f := range p.Files {
		if !fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsAny(f.Path, "\x00\\") {
			return invalid(fmt.Sprintf("files[%d]", i), "%q is no relative path below the profile's folder", f.Path)
		}
		if slices.ContainsFunc(p.Files[:i], func(g runnerscripts.WorkspaceFile) bool { return g.Path == f.Path }) {
			return invalid(fmt.Sprintf("files[%d]", i), "%q stands twice", f.Path)
		}
		if f.Path == path.Clean(p.Command[0]) && f.Mode&0o111 == 0 {
			return invalid("command", "the file %s is not executable; make it so, or name its interpreter, as in [python3, %[1]s]", f.Path)
		}
	}
	return nil
}

// Timeout returns the time-out of a procedural executor.
func (p Profile) Timeout() time.Duration {
	if p.TimeoutSeconds > 0 {
		return time.Duration(p.TimeoutSeconds) * time.Second
	}
	return DefaultTimeout
}

// At returns the command with the words that name one of Files replaced by the file's path below
// dir, where the files have been written.
func (p Profile) At(dir string) []string {
	words := slices.Clone(p.Command)
	for i, word := range words {
		name := path.Clean(word)
		if slices.ContainsFunc(p.Files, func(f runnerscripts.WorkspaceFile) bool { return f.Path == name }) {
			words[i] = path.Join(dir, name)
		}
	}
	return words
}
