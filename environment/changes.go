package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Change is a difference between the workspace now and as it was when the
// sources were placed.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// Path is relative to the workspace.
	Path string `json:"path"`
	// OldMode and NewMode are type and permission; zero where there is no
	// file.
	OldMode fs.FileMode `json:"old_mode,omitempty"`
	NewMode fs.FileMode `json:"new_mode,omitempty"`
	// OldSize and NewSize are in bytes.
	OldSize int64 `json:"old_size,omitempty"`
	NewSize int64 `json:"new_size,omitempty"`
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds.
const (
	Created  ChangeKind = "created"
	Modified ChangeKind = "modified" // content, permission, or a file became a link
	Deleted  ChangeKind = "deleted"
)

// Changes returns what has changed in the workspace since the sources were
// placed, sorted by path. Files, links and their permissions count; empty
// folders, what is in a .git folder and Config.IgnoreChanges do not. Nor does what a
// [Folder] of Config.Workspace left out when it was copied: what its Ignore names and, with
// Gitignore, new files that git ignores in it. The same holds for [Environment.Patch] and
// [Environment.Apply].
func (e *Environment) Changes(ctx context.Context) ([]Change, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var changes []workspace.Change
	err = e.base.use(ctx, func(old *workspace.Snapshot) error {
		current, err := workspace.Take(ctx, e.prim, e.cfg.notCounted(), false, nil)
		if err != nil {
			return err
		}
		changes, err = e.counted(ctx, workspace.Compare(old, current))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("changes of the workspace: %w", err)
	}
	return describeChanges(changes), nil
}

// describeChanges returns changes as users see them; nil for none.
func describeChanges(changes []workspace.Change) []Change {
	var list []Change
	for _, c := range changes {
		d := Change{Kind: Modified, Path: c.Path}
		if c.Old == nil {
			d.Kind = Created
		} else {
			d.OldMode, d.OldSize = c.Old.Mode, c.Old.Size
		}
		if c.New == nil {
			d.Kind = Deleted
		} else {
			d.NewMode, d.NewSize = c.New.Mode, c.New.Size
		}
		list = append(list, d)
	}
	return list
}

// counted leaves out what the folders that were copied left out.
func (e *Environment) counted(ctx context.Context, changes []workspace.Change) (_ []workspace.Change, err error) {
	for _, s := range e.owner.folders {
		if changes, err = leaveOut(ctx, s, changes); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// Patch writes the changes to w as one patch that "git apply" takes: text and
// binary files, new and deleted ones, links, and whether a file can be executed,
// which is the only permission that git knows. Without changes nothing is
// written.
func (e *Environment) Patch(ctx context.Context, w io.Writer) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.base.use(ctx, func(old *workspace.Snapshot) (err error) {
		current, err := workspace.Take(ctx, e.prim, e.cfg.notCounted(), true, old)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, current.Close()) }()
		changes, err := e.counted(ctx, workspace.Compare(old, current))
		if err != nil {
			return err
		}
		return workspace.WritePatch(ctx, w, old, current, changes)
	})
	if err != nil {
		return fmt.Errorf("patch of the workspace: %w", err)
	}
	return nil
}

// ErrConflict says that a folder of this machine is not as the workspace began, so that
// changes do not apply to it.
var ErrConflict = workspace.ErrConflict

// Apply makes the changes of the workspace in the folder of this machine that it was
// copied from, given as it was in Config.Workspace, and returns the changes that it made.
// What does not count as a change is left out, see [Environment.Changes].
//
// It makes all changes or none. Every file that it would change must be as it was
// copied, and no new one may be in the way: otherwise the error is [ErrConflict] and names
// them. A folder without files gives way to a new file. A file that is as in the workspace
// already stays as it is, so the same changes can be applied twice. Apply never
// follows a symbolic link below the folder. A change that would make a link out of the
// folder, or into a .git folder, is primitives.ErrPathEscape.
//
// [Environment.Patch] is for folders that have changed.
func (e *Environment) Apply(ctx context.Context, to Folder) (_ []Change, err error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var made []workspace.Change
	err = e.base.use(ctx, func(old *workspace.Snapshot) (err error) {
		current, err := workspace.Take(ctx, e.prim, e.cfg.notCounted(), true, old)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, current.Close()) }()
		changes, err := leaveOut(ctx, Source{Folder: &to}, workspace.Compare(old, current))
		if err != nil {
			return err
		}
		made, err = workspace.Apply(ctx, to.Path, old, current, changes)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("apply the changes to %s: %w", to.Path, err)
	}
	return describeChanges(made), nil
}

// leaveOut leaves out the changes that a folder of this machine, copied into the
// workspace, would leave out: what matches Ignore and, with Gitignore, new files that git
// ignores there. Where the folder is gone, git ignores nothing.
func leaveOut(ctx context.Context, from Source, changes []workspace.Change) ([]workspace.Change, error) {
	into := path.Join(".", from.Into)
	within := func(c workspace.Change) (name string, ok bool) {
		if into == "." {
			return c.Path, true
		}
		return strings.CutPrefix(c.Path, into+"/")
	}
	out := make(map[string]bool)
	var created []string
	for _, c := range changes {
		name, ok := within(c)
		switch {
		case !ok:
		case workspace.Ignored(from.Folder.Ignore, name):
			out[name] = true
		case from.Folder.Gitignore && c.Old == nil:
			created = append(created, name)
		}
	}
	found, err := hostgit.Ignored(ctx, from.Folder.Path, created)
	if err != nil {
		return nil, err
	}
	for _, name := range found {
		out[name] = true
	}
	return slices.DeleteFunc(changes, func(c workspace.Change) bool { name, ok := within(c); return ok && out[name] }), nil
}

// notCounted returns the patterns that Changes, Patch and Apply ignore: git's own files, which
// git cannot patch, and Config.IgnoreChanges. leaveOut skips what a copied folder ignored.
func (c Config) notCounted() []string { return append([]string{".git"}, c.IgnoreChanges...) }

// baseline is the workspace as it was when the sources were placed.
type baseline struct {
	mu     sync.RWMutex                                       // held for reading while the store is in use
	read   func(context.Context) (*workspace.Snapshot, error) // brings snap when it is first needed; nil if that is done
	snap   *workspace.Snapshot
	err    error // why there is none
	closed bool
}

// take remembers the workspace, or that a sandbox which is attached to does. A
// sandbox that cannot pack has no baseline, which shows when it is asked for.
func (b *baseline) take(ctx context.Context, p primitives.EnvironmentPrimitive, ignore []string, own owner) error {
	if own.placed {
		b.read = func(ctx context.Context) (*workspace.Snapshot, error) { return readBaseline(ctx, p, own) }
		return nil
	}
	b.snap, b.err = workspace.Take(ctx, p, ignore, true, nil)
	if errors.Is(b.err, errors.ErrUnsupported) {
		return nil
	}
	return b.err
}

// use gives the baseline to a function that runs before it is closed.
func (b *baseline) use(ctx context.Context, f func(*workspace.Snapshot) error) error {
	if err := b.find(ctx); err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch {
	case b.closed:
		return ErrClosed
	case b.err != nil:
		return b.err
	}
	return f(b.snap)
}

// find reads the baseline unless that is done. One that could not be read is
// tried again the next time.
func (b *baseline) find(ctx context.Context) error {
	b.mu.RLock()
	known := b.read == nil
	b.mu.RUnlock()
	if known {
		return nil // without keeping others from using it
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read == nil || b.closed {
		return nil
	}
	snap, err := b.read(ctx)
	if err != nil {
		return fmt.Errorf("read what the workspace began with: %w", err)
	}
	b.snap, b.read = snap, nil
	return nil
}

// share takes over what another baseline knows; either may be closed first.
func (b *baseline) share(of *baseline) error {
	of.mu.RLock()
	defer of.mu.RUnlock()
	switch {
	case of.closed:
		return ErrClosed
	case of.read != nil:
		return nil // each finds it in its own sandbox
	}
	snap, err := of.snap.Clone()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.snap
	b.read, b.snap, b.err = nil, snap, of.err
	return own.Close()
}

func (b *baseline) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.snap.Close()
}
