package local

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Provider makes sandboxes on this machine. Its fields are the settings that only local sandboxes
// have. The zero value uses the default folder.
type Provider struct {
	// Root is the folder that holds the sandboxes, see [Config].Root.
	Root string `json:"root,omitempty"`

	// Runner returns the path of the envrunner program for this machine, for example bundle.Find.
	// It supervises durable commands, which outlive this program. Nil or an empty path means none.
	Runner func(ctx context.Context, goos, goarch string) (string, error) `json:"-"`
	// Logger takes diagnostics; nil means silence.
	Logger hclog.Logger `json:"-"`
}

var (
	_ primitives.Provider      = Provider{}
	_ primitives.SpecChecker   = Provider{}
	_ primitives.ProgramFinder = Provider{}
	_ primitives.Collector     = Provider{}
	_ primitives.Examiner      = Provider{}
	_ primitives.PathHolder    = (*Provider)(nil)
)

// notHere explains why a local sandbox refuses a setting of Spec.
const notHere = "a local sandbox has none of its own, it is part of this machine; leave it out, or choose the type docker or modal"

// CheckSpec implements primitives.SpecChecker.
func (p Provider) CheckSpec(spec primitives.Spec) error {
	err := errors.Join(spec.Check(), spec.Refuse(notHere, "image", "network", "cpus", "memory", "ports", "name", "labels", "expires"))
	if err == nil && spec.Workspace != "" && spec.WorkspacePath != spec.Workspace {
		err = spec.Refuse("a local sandbox works in the workspace itself; leave it out", "workspace_path")
	}
	return err
}

// FindProgram implements primitives.ProgramFinder.
func (p Provider) FindProgram(spec primitives.Spec, env []string, name string) error {
	_, err := lookup(name, "/", mergeEnv(baseEnv(hostEnv(), primitives.Paths{}, "", spec.Environ()), env))
	return err
}

// Create makes a sandbox as [New] does.
func (p Provider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	err := p.CheckSpec(spec)
	if err != nil {
		return nil, wrap("create", "", err)
	}
	cfg := Config{
		Root: p.Root, Workspace: spec.Workspace, Env: spec.Environ(), User: spec.User, Keep: spec.Keep, Grace: spec.Grace,
		Session: spec.Session, Logger: p.Logger,
	}
	if spec.Workspace == "" {
		cfg.WorkspacePath = spec.WorkspacePath
	}
	if cfg.Runner, err = p.runner(ctx); err != nil {
		return nil, wrap("create", "", err)
	}
	s, err := New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// runner returns the absolute path of the runner, or "" if there is none.
func (p Provider) runner(ctx context.Context) (string, error) {
	if p.Runner == nil {
		return "", nil
	}
	name, err := p.Runner(ctx, runtime.GOOS, runtime.GOARCH)
	if err != nil || name == "" {
		return "", err
	}
	return filepath.Abs(name)
}

// Attach opens a sandbox as the function [Attach] does.
func (p Provider) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	runner, err := p.runner(ctx)
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	s, err := Attach(ctx, Config{Root: p.Root, Logger: p.Logger, Runner: runner}, id)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Remove terminates a sandbox and everything that runs in it.
func (p Provider) Remove(ctx context.Context, id string) error {
	s, err := p.Attach(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.Terminate(ctx)
	return errors.Join(err, s.Close())
}

// HostPaths returns the settings that are paths of this machine.
func (p *Provider) HostPaths(spec *primitives.Spec) []*string {
	return []*string{&p.Root, &spec.Workspace}
}
