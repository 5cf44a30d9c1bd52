package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Move creates a sandbox that to describes, possibly of another type, with the workspace and the
// conversation of this environment, and then ends this environment. The SessionID stays, and the
// agent keeps its memory; [Environment.Changes] count from the same baseline. What runs in this
// sandbox ends, and its files outside the workspace do not move. A sandbox without an agent
// moves with its workspace alone.
//
// The workspace has the same path in the new sandbox if that can have it (see SessionState.KeepPath), as a
// container can. Otherwise absolute links into the workspace lead to its new path, and other absolute
// paths in files, as in a Python venv, still name the old one.
//
// Move uses the Sandbox and Trust of to, and settings of this program such as Keep and Progress.
// If to leaves out a setting of the conversation, Move takes it from this environment: the
// Agent, its Env, the Profile, IgnoreChanges, Permissions, PermissionLimits, User, OnPermission, Delegation, AgentTools
// and CountTo. A Workspace or another SessionID is [ErrConfig].
//
// Move does not end a sandbox that the caller created (see [New]). If Move fails and returns no
// environment, this environment is unchanged. If it returns an environment with the error, the
// new environment works, but this one could not be ended or the name could not be moved. Errors:
// [ErrTrust] if the new sandbox is less isolated than this one and to has no Trust; [ErrBusy]
// while a query runs; errors.ErrUnsupported for an agent that cannot move its memory (without
// runnerscripts.FeatureResume); and those of [Create].
func (e *Environment) Move(ctx context.Context, to Config) (*Environment, error) {
	ctx, leave, err := e.queries.Alone(ctx) // a query that ran now would be lost
	if err != nil {
		return nil, fmt.Errorf("move: %w", err)
	}
	defer leave()
	moved, err := e.copyTo(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("move: %w", err)
	}
	name, end := e.origin.log.Name(), e.Terminate
	if e.origin.release == nil {
		end = func(context.Context) error { return e.Close() }
	}
	if err := end(ctx); err != nil {
		return moved, fmt.Errorf("move: end the sandbox %s: %w", e.ID(), err)
	}
	if name != "" && to.Name == "" {
		if err := moved.origin.log.SetName(ctx, name, lives); err != nil {
			return moved, fmt.Errorf("move: %w", err)
		}
	}
	return moved, nil
}

// copyTo creates the other sandbox.
func (e *Environment) copyTo(ctx context.Context, to Config) (*Environment, error) {
	if e.origin.unknown != nil {
		if err := e.checkAgent(runnerscripts.ReadTranscript); err != nil {
			return nil, err
		}
	}
	to, err := e.fillConfig(to)
	if err != nil {
		return nil, err
	}
	if working, err := e.queries.Working(ctx); err != nil {
		return nil, err
	} else if working {
		return nil, fmt.Errorf("%w: one that another program has begun; follow it to its end first", ErrBusy)
	}
	start, err := e.readSetup(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the conversation: %w", err)
	}
	if start.Transcript != nil {
		if err := e.checkCanResume(ctx, to); err != nil {
			return nil, err
		}
	}
	moved, err := e.createWithWorkspace(ctx, to)
	if err != nil {
		return nil, err
	}
	moved.origin.folders = e.origin.folders
	err = errors.Join(moved.takeOverBaseline(ctx, e), moved.takeOverRecord(ctx))
	if err == nil && to.Agent.Name != "" {
		_, err = moved.setupSession(ctx, start)
	}
	if err != nil {
		return nil, errors.Join(err, moved.Terminate(ctx))
	}
	return moved, nil
}

// createWithWorkspace creates a sandbox with the workspace of this one.
func (e *Environment) createWithWorkspace(ctx context.Context, to Config) (moved *Environment, err error) {
	packed, err := primitives.Pack(ctx, e.prim, ".", primitives.PackOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the workspace: %w", err)
	}
	at := e.prim.Paths().Workspace
	to.Session.KeepPath, to.Workspace = at, []Source{{Tar: &Tar{Reader: packed, Root: at, Whole: true}}}
	moved, err = Create(ctx, to)
	if err = errors.Join(err, packed.Close()); err != nil {
		if moved != nil {
			err = errors.Join(err, moved.Terminate(ctx))
		}
		return nil, err
	}
	moved.cfg.Workspace = nil
	return moved, nil
}

// readSetup returns the Setup from which the agent resumes in another sandbox.
func (e *Environment) readSetup(ctx context.Context) (Setup, error) {
	start, err := e.conversation(ctx)
	if err != nil || start.Transcript != nil || e.cfg.Agent.Name == "" {
		return start, err
	}
	if e.origin.before != nil {
		start.Transcript, err = e.predecessor(ctx)
		return start, err
	}
	// Another program may have prompted the agent of a kept sandbox.
	t, err := e.ReadTranscript(ctx)
	if err != nil || t.Main == "" && len(t.Subagents) == 0 {
		return start, err
	}
	start.Transcript = &t
	return start, nil
}

// checkCanResume returns an error for an agent whose memory cannot be read, and would end with this
// sandbox.
func (e *Environment) checkCanResume(ctx context.Context, to Config) error {
	if len(e.cfg.Scripts.ReadTranscript) > 0 {
		return nil // the script of the user's own supports it
	}
	r, err := readRecipe(ctx, to)
	if err == nil && !slices.Contains(r.Supports, runnerscripts.FeatureResume) {
		err = fmt.Errorf("the agent %q does not remember in another sandbox: %w; go on with it in this one", to.Agent.Name, errors.ErrUnsupported)
	}
	return err
}

// fillConfig fills in the settings of this environment.
func (e *Environment) fillConfig(to Config) (Config, error) {
	switch {
	case len(to.Workspace) > 0:
		return to, fmt.Errorf("%w: workspace: the workspace moves; leave it out", ErrConfig)
	case to.SessionID != "" && to.SessionID != e.cfg.SessionID:
		return to, fmt.Errorf("%w: session_id: the conversation moves; leave it out", ErrConfig)
	case to.Agent.Name != "" && e.cfg.Agent.Name != "" && to.Agent.Name != e.cfg.Agent.Name:
		return to, fmt.Errorf("%w: agent: another agent does not know the conversation of %q; leave it out", ErrConfig, e.cfg.Agent.Name)
	}
	to.SessionID = e.cfg.SessionID
	if to.Agent.Name == "" {
		env := to.Agent.Env
		to.Agent.Env = nil
		if !reflect.ValueOf(to.Agent).IsZero() {
			return to, fmt.Errorf("%w: agent: its name is missing; give it, %q, beside what else is said of it", ErrConfig, e.cfg.Agent.Name)
		}
		if to.Agent = e.agent(); env != nil {
			to.Agent.Env = env
		}
	}
	if reflect.ValueOf(to.Profile).IsZero() {
		to.Profile = e.cfg.Profile
	}
	if to.IgnoreChanges == nil {
		to.IgnoreChanges = e.cfg.IgnoreChanges
	}
	if to.Permissions.IsZero() {
		to.Permissions = e.cfg.Permissions
	}
	if to.PermissionLimits.IsZero() {
		to.PermissionLimits = e.cfg.PermissionLimits
	}
	if to.Session.Within == nil {
		to.Session.Within = e.cfg.Session.Within
	}
	if to.OnPermission == nil {
		to.OnPermission, to.PermissionTimeout = e.cfg.OnPermission, e.cfg.PermissionTimeout
	}
	if to.Delegation.IsZero() {
		to.Delegation = e.cfg.Delegation
	}
	if to.AgentTools == nil {
		to.AgentTools = e.cfg.AgentTools
	}
	if to.Session.CountTo == nil {
		to.Session.CountTo = e.cfg.Session.CountTo
	}
	to.Session.Sources, to.Session.User = e.cfg.sources(e.origin), cmp.Or(to.Session.User, e.cfg.Session.User)
	to.Session.Used = e.Used()
	to.Session.From = cmp.Or(e.prim.Capabilities().Isolation, primitives.IsolationFull) // unknown counts as the strongest
	return to, nil
}

// takeOverBaseline makes changes count from the baseline of another environment, if that has a
// baseline.
func (e *Environment) takeOverBaseline(ctx context.Context, from *Environment) error {
	if err := from.base.find(ctx); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	return e.base.share(&from.base)
}

// takeOverRecord stores the baseline in a kept sandbox.
func (e *Environment) takeOverRecord(ctx context.Context) error {
	if !e.origin.kept {
		return nil
	}
	if err := e.leaveBaseline(ctx); err != nil {
		return err
	}
	e.remember(e.origin.log.Change)
	return nil
}
