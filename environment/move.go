package environment

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Move makes a sandbox as to describes it, of another type if need be, with the
// workspace and the conversation of this environment, and ends this one. The
// SessionID stays, and the agent remembers; [Environment.Changes] count from where
// this one's do. What runs in this sandbox ends, and of its files outside the
// workspace nothing comes along. A sandbox without an agent moves with its workspace alone.
//
// Of to count the Sandbox, Trust, and what is about this program, such as Keep and
// Progress. What is about the conversation is taken over where to leaves it out:
// the Agent, its Env, the Profile, Env and IgnoreChanges. A Workspace or another
// SessionID is [ErrConfig].
//
// A sandbox that was made by the caller (see [New]) stays. When Move fails, this
// environment is as it was, except with an environment returned too: then this one
// could not be ended. Errors: [ErrTrust] without Trust in to where the new sandbox is less
// isolated than this one; [ErrBusy] while a query runs, errors.ErrUnsupported for
// an agent that remembers only where it is (without runnerscripts.FeatureResume), and
// those of [Create].
func (e *Environment) Move(ctx context.Context, to Config) (*Environment, error) {
	ctx, leave, err := e.enterAlone(ctx) // what a query did from now on would be lost
	if err != nil {
		return nil, fmt.Errorf("move: %w", err)
	}
	defer leave()
	moved, err := e.copyTo(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("move: %w", err)
	}
	end := e.Terminate
	if e.owner.release == nil {
		end = func(context.Context) error { return e.Close() }
	}
	if err := end(ctx); err != nil {
		return moved, fmt.Errorf("move: end the sandbox %s: %w", e.ID(), err)
	}
	if e.activity != nil && e.activity.now.Name != "" && to.Name == "" {
		if err := moved.setName(ctx, e.activity.now.Name); err != nil {
			return moved, fmt.Errorf("move: %w", err)
		}
	}
	return moved, nil
}

// copyTo makes the other sandbox.
func (e *Environment) copyTo(ctx context.Context, to Config) (*Environment, error) {
	if e.owner.unknown != nil {
		if err := e.checkAgent(runnerscripts.ReadTranscript); err != nil {
			return nil, err
		}
	}
	to, err := e.moving(to)
	if err != nil {
		return nil, err
	}
	if working, err := e.working(ctx); err != nil {
		return nil, err
	} else if working {
		return nil, fmt.Errorf("%w: one that another program has begun; follow it to its end first", ErrBusy)
	}
	start, err := e.memory(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the conversation: %w", err)
	}
	if start.Transcript != nil {
		if err := e.remembers(ctx, to); err != nil {
			return nil, err
		}
	}
	moved, err := e.createWithWorkspace(ctx, to)
	if err != nil {
		return nil, err
	}
	moved.owner.folders = e.owner.folders
	err = errors.Join(moved.takeOverBaseline(ctx, e), moved.takeOverRecord(ctx))
	if err == nil && to.Agent.Name != "" {
		_, err = moved.setupSession(ctx, start)
	}
	if err != nil {
		return nil, errors.Join(err, moved.Terminate(ctx))
	}
	return moved, nil
}

// working reports whether a query runs that another program has begun.
func (e *Environment) working(ctx context.Context) (bool, error) {
	last, err := e.lastPrompt(ctx)
	if errors.Is(err, ErrNoQuery) || err == nil && last.Seen {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	far, err := e.progressOf(ctx, last)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return false, nil // its output is gone, so it is, too
	case err != nil || far.ended:
		return false, err
	}
	proc, err := primitives.Reattach(ctx, e.prim, last.Process, primitives.Offset{Stdout: last.Offset, NoFollow: true})
	if err != nil {
		return false, err
	}
	alive := !exits(ctx, proc, primitives.DefaultGrace)
	return alive, errors.Join(context.Cause(ctx), proc.Close())
}

// createWithWorkspace makes a sandbox with the workspace of this one.
func (e *Environment) createWithWorkspace(ctx context.Context, to Config) (moved *Environment, err error) {
	packed, err := primitives.Pack(ctx, e.prim, ".", primitives.PackOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the workspace: %w", err)
	}
	err = archive.Pipe(func(w io.Writer) error {
		return relink(w, packed, e.prim.Paths().Workspace)
	}, func(r io.Reader) (err error) {
		to.Workspace = []Source{{Tar: &Tar{Reader: r}}}
		moved, err = Create(ctx, to)
		return err
	})
	if err = errors.Join(err, packed.Close()); err != nil {
		if moved != nil {
			err = errors.Join(err, moved.Terminate(ctx))
		}
		return nil, err
	}
	moved.cfg.Workspace = nil
	return moved, nil
}

// relink copies a packed workspace. Links that name a file of it by an absolute path
// do so by a relative one in the copy, which is elsewhere.
func relink(w io.Writer, packed io.Reader, root string) error {
	in, out := archive.NewReader(packed, workspace.Limit), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("read the workspace: %w", err)
		}
		if h.Typeflag == tar.TypeSymlink {
			h.Linkname = relativeTo(path.Dir(path.Join(root, h.Name)), h.Linkname, root)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// relativeTo is the target of a link in a folder, relative to that if it is an
// absolute path in the workspace.
func relativeTo(dir, target, workspace string) string {
	if target != workspace && !strings.HasPrefix(target, workspace+"/") {
		return target
	}
	relative, err := filepath.Rel(dir, target)
	if err != nil {
		return target
	}
	return filepath.ToSlash(relative)
}

// memory is what the agent is to remember in another sandbox.
func (e *Environment) memory(ctx context.Context) (Setup, error) {
	start, err := e.conversation(ctx)
	if err != nil || start.Transcript != nil || e.cfg.Agent.Name == "" {
		return start, err
	}
	if e.owner.before != nil {
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

// remembers refuses an agent whose memory cannot be read, and would end with this
// sandbox.
func (e *Environment) remembers(ctx context.Context, to Config) error {
	if len(e.cfg.Scripts.ReadTranscript) > 0 {
		return nil // it brings what it needs
	}
	r, err := readRecipe(ctx, to)
	if err == nil && !slices.Contains(r.Supports, runnerscripts.FeatureResume) {
		err = fmt.Errorf("the agent %q does not remember in another sandbox: %w; go on with it in this one", to.Agent.Name, errors.ErrUnsupported)
	}
	return err
}

// moving fills in what is this environment's.
func (e *Environment) moving(to Config) (Config, error) {
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
		if to.Agent = e.session().Agent; env != nil {
			to.Agent.Env = env
		}
	}
	if reflect.ValueOf(to.Profile).IsZero() {
		to.Profile = e.cfg.Profile
	}
	if to.IgnoreChanges == nil {
		to.IgnoreChanges = e.cfg.IgnoreChanges
	}
	if to.OnPermission == nil {
		to.OnPermission, to.PermissionTimeout = e.cfg.OnPermission, e.cfg.PermissionTimeout
	}
	to.Used = e.Used()
	to.From = cmp.Or(e.prim.Capabilities().Isolation, primitives.IsolationFull) // one that does not say counts as the strongest
	return to, nil
}

// takeOverBaseline counts changes from the baseline of another environment, if that has
// one.
func (e *Environment) takeOverBaseline(ctx context.Context, from *Environment) error {
	if err := from.base.find(ctx); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	return e.base.share(&from.base)
}

// takeOverRecord writes the baseline into the record of a kept sandbox.
func (e *Environment) takeOverRecord(ctx context.Context) error {
	if !e.owner.kept {
		return nil
	}
	err := e.base.use(ctx, func(began *workspace.Snapshot) error {
		return archive.Pipe(began.Pack, func(r io.Reader) error { return e.leaveBaseline(ctx, r) })
	})
	if err != nil {
		return err
	}
	return e.leaveNote(ctx)
}
