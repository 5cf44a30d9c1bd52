package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/internal/workspace"
)

// Change is a difference between the workspace now and when the sources were placed.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// Path is relative to the workspace.
	Path string `json:"path"`
	// PathBytes is Path if that is not UTF-8, which is all that a text of JSON can hold; else nil.
	PathBytes []byte `json:"path_bytes,omitempty"`
	// OldMode and NewMode are type and permission; zero if the file does not exist.
	OldMode fs.FileMode `json:"old_mode,omitempty"`
	NewMode fs.FileMode `json:"new_mode,omitempty"`
	// OldSize and NewSize are in bytes.
	OldSize int64 `json:"old_size,omitempty"`
	NewSize int64 `json:"new_size,omitempty"`
	// Filter is what git converts the file with, between the folder of this machine that it came
	// from and its repository: the name of a filter, such as lfs, or an attribute, such as
	// working-tree-encoding=UTF-16. "git apply" refuses the patch of such a file, unless the
	// filter is switched off; [Environment.Apply] makes the change. Empty for none.
	Filter string `json:"filter,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. Path is the name, also if that is not UTF-8.
func (c *Change) UnmarshalJSON(data []byte) error {
	type plain Change // without this method
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	if len(c.PathBytes) > 0 {
		c.Path = string(c.PathBytes)
	}
	return nil
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
// ignores in it. Nor do new files that a .gitignore of the workspace ignores now, except in a
// Folder without Gitignore and on a machine without git. [Environment.Ignored] counts the new files that git ignores.
// [Environment.Patch] and [Environment.Apply] follow the same rules.
func (e *Environment) Changes(ctx context.Context) ([]Change, error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var changes []Change
	err = e.differ(ctx, false, func(d difference) error {
		counted, err := e.leaveOut(ctx, e.origin.folders, d)
		if err != nil {
			return err
		}
		changes = describeChanges(counted)
		return e.addFilters(ctx, e.origin.folders, changes)
	})
	if err != nil {
		return nil, fmt.Errorf("changes of the workspace: %w", err)
	}
	return changes, nil
}

// describeChanges converts changes to the public type; nil for none.
func describeChanges(changes []workspace.Change) []Change {
	var list []Change
	for _, c := range changes {
		d := Change{Kind: Modified, Path: c.Path, PathBytes: workspace.NotUTF8(c.Path)}
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

// Patch writes the changes to w as one patch for "git apply": text and binary files, new and
// deleted files, links, and whether a file is executable, which is the only permission that git
// knows. A file with a [Change.Filter] needs it switched off in "git apply". Without changes Patch
// writes nothing.
func (e *Environment) Patch(ctx context.Context, w io.Writer) error {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.differ(ctx, true, func(d difference) error {
		changes, err := e.leaveOut(ctx, e.origin.folders, d)
		if err != nil {
			return err
		}
		return workspace.WritePatch(ctx, w, d.blobs, changes)
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
// Apply takes permissions away as the workspace did: a new file or folder is never open to more
// users than there, and a chmod alone is a change. It adds only git's executable bit, and never
// more than the umask or the file in the folder allow.
//
// Use [Environment.Patch] for a folder that has changed.
func (e *Environment) Apply(ctx context.Context, to Folder) (_ []Change, err error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var made []Change
	err = e.differ(ctx, true, func(d difference) error {
		changes, err := e.leaveOut(ctx, []Source{{Folder: &to}}, d)
		if err != nil {
			return err
		}
		applied, err := workspace.Apply(ctx, to.Path, d.blobs, d.old, d.current, changes)
		made = describeChanges(applied)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("apply the changes to %s: %w", to.Path, err)
	}
	return made, nil
}
