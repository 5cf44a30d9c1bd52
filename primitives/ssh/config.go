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

// Provider makes sandboxes of one machine. Its fields are the settings that only these
// have; Host and Runner are needed.
type Provider struct {
	// Host is what the ssh command takes as its destination: a host, user@host, or an
	// alias of the user's configuration of ssh, which also holds ports, keys and jump hosts.
	Host string `json:"host,omitempty"`
	// Root is the absolute path of the folder on the other machine that everything is
	// below; it is made if it is missing, for that user only. Empty means agentenv/ssh in
	// the user's cache directory there.
	Root string `json:"root,omitempty"`

	// Runner returns the path, on this machine, of the envrunner program for the other
	// machine, for example bundle.Find. It is copied there when it is missing.
	Runner func(ctx context.Context, goos, goarch string) (string, error) `json:"-"`
	// Logger gets what happens to the connection; nil is silence.
	Logger hclog.Logger `json:"-"`
	// Progress gets a sentence about what takes longer than a moment, such as copying
	// Runner. It may be called from any goroutine. Nil is silence.
	Progress func(string) `json:"-"`
}

const defaultGrace = 30 * time.Second

// config is all that makes a sandbox.
type config struct {
	primitives.Spec
	Provider
	Runner string // what Provider.Runner returned
}

// config finds the runner for the machine.
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

// notThere is why a Spec of a sandbox of another machine has fewer settings.
const notThere = "an ssh sandbox has none of its own, it is part of its machine; leave it out, or choose the type docker or modal"

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
	case strings.ContainsRune(c.Root+c.Workspace+c.User, 0):
		return invalid("root, workspace, user", "one of them contains a NUL byte")
	}
	err := errors.Join(c.Check(), c.Refuse(notThere, "image", "network", "cpus", "memory", "ports", "name", "labels", "expires"))
	if err == nil && c.WorkspacePath != c.Workspace {
		err = c.Refuse("an ssh sandbox works in the workspace itself; leave it out", "workspace_path")
	}
	return err
}

// stay is how long the first guest waits for a program, for its command line.
func (c config) stay() string {
	if c.Keep {
		return "-1s"
	}
	return cmp.Or(c.Grace, defaultGrace).String()
}
