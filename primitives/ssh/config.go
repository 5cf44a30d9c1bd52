package ssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Provider creates sandboxes on one remote machine. Its fields are the settings that only ssh
// sandboxes have. Host and Runner are required.
type Provider struct {
	// Host is the destination of the ssh command: a host, user@host, or an alias of the user's
	// ssh configuration, which also holds ports, keys and jump hosts.
	Host string `json:"host,omitempty"`
	// Root is the absolute path of the folder on the remote machine that contains everything.
	// If it is missing, it is created for that user only. Empty means agentenv/ssh in the
	// user's cache directory there.
	Root string `json:"root,omitempty"`

	// Runner returns the path, on this machine, of the envrunner program for the remote
	// machine, for example bundle.Find. The program is copied to the remote machine if it is
	// missing there.
	Runner func(ctx context.Context, goos, goarch string) (string, error) `json:"-"`
	// Logger logs the events of the connection. Nil disables logging.
	Logger hclog.Logger `json:"-"`
	// Progress receives a sentence about each step that takes longer than a moment, such as
	// copying Runner. It may be called from any goroutine. Nil disables it.
	Progress func(string) `json:"-"`
}

const defaultGrace = 30 * time.Second

// config holds all settings of one sandbox.
type config struct {
	primitives.Spec
	Provider
	Runner string // the result of Provider.Runner
}

// CheckSpec implements primitives.SpecChecker.
func (p Provider) CheckSpec(spec primitives.Spec) error {
	return config{Spec: spec, Provider: p}.check()
}

// config returns the settings of a sandbox, with the runner for the machine.
func (p Provider) config(ctx context.Context, spec primitives.Spec) (config, error) {
	cfg := config{Spec: spec, Provider: p}
	if err := cfg.check(); err != nil || p.Runner == nil {
		return cfg, err
	}
	goos, goarch, err := p.platform(ctx)
	if err == nil {
		cfg.Runner, err = p.Runner(ctx, goos, goarch)
	}
	return cfg, err
}

// unsupportedReason is the reason why an ssh sandbox refuses some settings of Spec.
const unsupportedReason = "an ssh sandbox has none of its own, it is part of its machine; leave it out, or choose the type docker or modal"

func (c config) check() error {
	invalid := func(field, format string, args ...any) error {
		return &primitives.SettingError{Setting: field, Problem: fmt.Sprintf(format, args...), Err: fs.ErrInvalid}
	}
	switch {
	case c.Host == "" || strings.HasPrefix(c.Host, "-") || strings.ContainsAny(c.Host, " \t\r\n\x00"):
		return invalid("host", "%q is no machine; name one as the ssh command takes it, such as build1 or user@build1", c.Host)
	case c.Root != "" && !path.IsAbs(c.Root):
		return invalid("root", "%q is not absolute; give an absolute path of the other machine", c.Root)
	case c.Workspace != "" && !path.IsAbs(c.Workspace):
		return invalid("workspace", "%q is not absolute; give an absolute path of the other machine", c.Workspace)
	case c.WorkspacePath != "" && !path.IsAbs(c.WorkspacePath):
		return invalid("workspace_path", "%q is not absolute; give an absolute path of the other machine", c.WorkspacePath)
	case strings.ContainsRune(c.Root+c.Workspace+c.WorkspacePath+c.User, 0):
		return invalid("root, workspace, user", "one of them contains a NUL byte")
	}
	err := errors.Join(c.Check(), c.Refuse(unsupportedReason, "image", "network", "cpus", "memory", "ports", "name", "labels", "expires"))
	if err == nil && c.Workspace != "" && c.WorkspacePath != c.Workspace {
		err = c.Refuse("an ssh sandbox works in the workspace itself; leave it out", "workspace_path")
	}
	return err
}

// stay returns the argument of --stay: how long the first guest waits for a program.
func (c config) stay() string {
	if c.Keep {
		return "-1s"
	}
	return cmp.Or(c.Grace, defaultGrace).String()
}
