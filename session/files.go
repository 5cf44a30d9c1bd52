package session

import (
	"context"
	"fmt"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Files returns the files of the workspace, sorted by path. Without a sandbox it
// returns [ErrNoEnvironment].
func (s *AgentSession) Files(ctx context.Context, opts environment.FilesOptions) ([]environment.WorkspaceFile, error) {
	live, err := s.running("files")
	if err != nil {
		return nil, err
	}
	files, err := live.WorkspaceFiles(ctx, opts)
	return files, s.wrapSandboxErr("files", live, err)
}

// OpenFile reads a file of the sandbox; a relative path is relative to the
// workspace and confined to it. Without a sandbox it returns [ErrNoEnvironment].
// The caller closes the reader.
func (s *AgentSession) OpenFile(ctx context.Context, name string) (io.ReadCloser, error) {
	live, err := s.running("open file")
	if err != nil {
		return nil, err
	}
	r, err := live.Files().Open(ctx, name)
	return r, s.wrapSandboxErr("open file", live, err)
}

// WriteFile writes a file of the sandbox as primitives.Files does. Without a
// sandbox it returns [ErrNoEnvironment].
func (s *AgentSession) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	live, err := s.running("write file")
	if err != nil {
		return err
	}
	return s.wrapSandboxErr("write file", live, live.Files().WriteFile(ctx, name, r, opts))
}

// SetOptions changes the model or the permission mode, now and for later sandboxes. It does not
// wait for the agent: an agent that refuses reports an error event later, and prompts in later
// sandboxes fail until another value is set. Without a sandbox the options apply to the next
// one.
func (s *AgentSession) SetOptions(ctx context.Context, o Options) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("set options: %w", err)
	}
	if o == (Options{}) {
		return fmt.Errorf("set options: %w: neither a model nor a mode is set; set one", fs.ErrInvalid)
	}
	s.optionsMu.Lock()
	defer s.optionsMu.Unlock()
	if live := s.live(); live != nil {
		if err := set(ctx, live, o); err != nil {
			return s.wrapSandboxErr("set options", live, err)
		}
	}
	return s.append(ctx, event(runnerscripts.TypeOptionsChanged, "",
		runnerscripts.OptionsChanged{Model: o.Model, Mode: o.Mode}))
}

// set passes options to the agent of a sandbox.
func set(ctx context.Context, sb sandbox, o Options) error {
	if o.Model != "" {
		if err := sb.SetModel(ctx, o.Model); err != nil {
			return fmt.Errorf("model: %w", err)
		}
	}
	if o.Mode != "" {
		if err := sb.SetMode(ctx, o.Mode); err != nil {
			return fmt.Errorf("mode: %w", err)
		}
	}
	return nil
}

// running returns the sandbox, or an error that says why there is none.
func (s *AgentSession) running(op string) (*liveSandbox, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	live := s.live()
	if live == nil {
		return nil, fmt.Errorf("%s: %w", op, ErrNoEnvironment)
	}
	return live, nil
}

// wrapSandboxErr adds op to err, and replaces an error of a sandbox that was ended meanwhile with
// ErrNoEnvironment.
func (s *AgentSession) wrapSandboxErr(op string, live *liveSandbox, err error) error {
	switch {
	case err == nil:
		return nil
	case gone(err) && s.live() != live:
		return fmt.Errorf("%s: %w", op, ErrNoEnvironment)
	}
	return fmt.Errorf("%s: %w", op, err)
}
