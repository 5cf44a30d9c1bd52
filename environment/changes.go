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

// Change is a difference between the workspace now and when the sources were placed.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// Path is relative to the workspace.
	Path string `json:"path"`
	// OldMode and NewMode are type and permission; zero if the file does not exist.
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

// Changes returns what has changed in the workspace since the sources were placed, sorted by
// path. Files, links and their permissions count. Empty folders, files under .git and files that
// Config.IgnoreChanges names do not count. Nor do files that a [Folder] of Config.Workspace left
// out when it was copied: files that its Ignore names and, with Gitignore, new files that git
// ignores in it. [Environment.Patch] and [Environment.Apply] follow the same rules.
func (e *Environment) Changes(ctx context.Context) ([]Change, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var changes []workspace.Change
	err = e.base.use(ctx, func(old *workspace.Snapshot) error {
		current, err := workspace.Take(ctx, e.prim, e.cfg.ignorePatterns(), false, nil)
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

// describeChanges converts changes to the public type; nil for none.
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

// counted removes the changes of files that the copied folders left out.
func (e *Environment) counted(ctx context.Context, changes []workspace.Change) (_ []workspace.Change, err error) {
	for _, s := range e.owner.folders {
		if changes, err = leaveOut(ctx, s, changes); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// Patch writes the changes to w as one patch for "git apply": text and binary files, new and
// deleted files, links, and whether a file is executable, which is the only permission that git
// knows. Without changes Patch writes nothing.
func (e *Environment) Patch(ctx context.Context, w io.Writer) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.base.use(ctx, func(old *workspace.Snapshot) (err error) {
		current, err := workspace.Take(ctx, e.prim, e.cfg.ignorePatterns(), true, old)
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

// ErrConflict means that a folder of this machine differs from what the workspace began with, so
// that the changes do not apply to it.
var ErrConflict = workspace.ErrConflict

// Apply makes the changes of the workspace in the folder of this machine that the workspace was
// copied from, and returns the changes that it made. The folder must be given as in
// Config.Workspace. Apply leaves out what does not count as a change, see [Environment.Changes].
//
// Apply makes all changes or none. Every file that it would change must be as it was when it was
// copied, and no file may be in the way of a new one: otherwise the error is [ErrConflict] and
// names those files. A new file replaces a folder without files. Apply keeps a file that already
// is as in the workspace, so the same changes can be applied twice. Apply never follows a
// symbolic link below the folder. A change in a .git folder, or to a link that leads out of the
// folder or into .git, is primitives.ErrPathEscape.
//
// Use [Environment.Patch] for a folder that has changed.
func (e *Environment) Apply(ctx context.Context, to Folder) (_ []Change, err error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var made []workspace.Change
	err = e.base.use(ctx, func(old *workspace.Snapshot) (err error) {
		current, err := workspace.Take(ctx, e.prim, e.cfg.ignorePatterns(), true, old)
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

// leaveOut removes the changes of files that a folder of this machine leaves out when it is
// copied into the workspace: files that match Ignore and, with Gitignore, new files that git
// ignores there. If the folder no longer exists, git ignores nothing.
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

// ignorePatterns returns the patterns that Changes, Patch and Apply ignore: git's own files, which
// git cannot patch, and Config.IgnoreChanges. leaveOut skips what a copied folder ignored.
func (c Config) ignorePatterns() []string { return append([]string{".git"}, c.IgnoreChanges...) }

// baseline is the workspace as it was when the sources were placed.
type baseline struct {
	mu     sync.RWMutex                                       // held for reading while the store is in use
	read   func(context.Context) (*workspace.Snapshot, error) // reads snap at its first use; nil once that is done
	snap   *workspace.Snapshot
	err    error // why there is no snap
	closed bool
}

// take takes a snapshot of the workspace. For an attached sandbox it only sets b.read, which
// reads the snapshot that the sandbox has. If the sandbox cannot pack files there is no
// baseline, and use returns the error.
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

// use calls f with the baseline, which close does not end meanwhile.
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

// find reads the baseline unless that is done. After an error the next call tries again.
func (b *baseline) find(ctx context.Context) error {
	b.mu.RLock()
	known := b.read == nil
	b.mu.RUnlock()
	if known {
		return nil // without the write lock, which would block other users
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

// share copies the baseline of another environment. Either baseline may be closed first.
func (b *baseline) share(of *baseline) error {
	of.mu.RLock()
	defer of.mu.RUnlock()
	switch {
	case of.closed:
		return ErrClosed
	case of.read != nil:
		return nil // each environment reads it from its own sandbox
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
