package ssh

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config says on which machine a sandbox is made, and how. Host and Runner are needed.
type Config struct {
	// Host is what the ssh command takes as its destination: a host, user@host, or an
	// alias of the user's configuration of ssh, which also holds ports, keys and jump hosts.
	Host string `json:"host"`
	// Runner is the path, on this machine, of the envrunner program for the other machine,
	// see [Platform]. It is copied there when it is missing.
	Runner string `json:"runner,omitempty"`
	// Root is the absolute path of the folder on the other machine that everything is
	// below; it is made if it is missing, for that user only. Empty means agentenv/ssh in
	// the user's cache directory there.
	Root string `json:"root,omitempty"`
	// Workspace is an existing folder of the other machine to work in instead of a new
	// one. It is used in place and never deleted.
	Workspace string `json:"workspace,omitempty"`
	// User runs commands there that name no user themselves, as in
	// primitives.Command.User. Empty means the user that ssh logs in as. Another one
	// needs root.
	User string `json:"user,omitempty"`
	// Env is added to the environment of every command, entries as in
	// primitives.Command.Env. It is in no command line.
	Env []string `json:"env,omitempty"`
	// Keep says that the sandbox outlives this program, until it is removed.
	Keep bool `json:"keep,omitempty"`
	// GraceSeconds is how long the sandbox waits for a program to connect again after
	// the connection has broken or was closed, before it ends; zero means 30 seconds.
	GraceSeconds int `json:"grace_seconds,omitempty"`
	// Logger gets what happens to the connection; nil is silence.
	Logger hclog.Logger `json:"-"`
	// Progress is called with what is done, for people; nil is silence.
	Progress func(string) `json:"-"`
}

const defaultGrace = 30 * time.Second

func (c Config) check() error {
	invalid := func(field, format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", fs.ErrInvalid, field, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Host == "" || strings.HasPrefix(c.Host, "-") || strings.ContainsAny(c.Host, " \t\r\n\x00"):
		return invalid("host", "%q is no machine; name one as the ssh command takes it, such as build1 or user@build1", c.Host)
	case c.Root != "" && !path.IsAbs(c.Root):
		return invalid("root", "%q is not absolute; give an absolute path of the other machine", c.Root)
	case c.Workspace != "" && !path.IsAbs(c.Workspace):
		return invalid("workspace", "%q is not absolute; give an absolute path of the other machine", c.Workspace)
	case c.GraceSeconds < 0:
		return invalid("grace_seconds", "it is negative; give a positive number, or 0 for 30")
	case strings.ContainsRune(c.Root+c.Workspace+c.User, 0):
		return invalid("root, workspace, user", "one of them contains a NUL byte")
	}
	return primitives.Command{Args: []string{"true"}, Env: c.Env}.Check()
}

// stay is how long the first guest waits for a program, for its command line.
func (c Config) stay() string {
	switch {
	case c.Keep:
		return "-1s"
	case c.GraceSeconds == 0:
		return defaultGrace.String()
	}
	return (time.Duration(c.GraceSeconds) * time.Second).String()
}
