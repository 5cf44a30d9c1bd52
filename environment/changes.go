package environment

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
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
	var changes []Change
	err = e.base.use(ctx, func(old *snapshot) error {
		current, err := takeSnapshot(ctx, e.prim, e.cfg.notCounted(), false, nil)
		if err != nil {
			return err
		}
		changes, err = e.counted(ctx, compare(old, current))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("changes of the workspace: %w", err)
	}
	return changes, nil
}

// counted leaves out what the folders that were copied left out.
func (e *Environment) counted(ctx context.Context, changes []Change) (_ []Change, err error) {
	for _, s := range e.owner.folders {
		if changes, err = leaveOut(ctx, s, changes); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

func compare(old, current *snapshot) []Change {
	var changes []Change
	for name, was := range old.files {
		is, ok := current.files[name]
		switch {
		case !ok:
			changes = append(changes, Change{Kind: Deleted, Path: name, OldMode: was.mode, OldSize: was.size})
		case !was.same(is):
			changes = append(changes, Change{
				Kind: Modified, Path: name,
				OldMode: was.mode, NewMode: is.mode, OldSize: was.size, NewSize: is.size,
			})
		}
	}
	for name, is := range current.files {
		if _, ok := old.files[name]; !ok {
			changes = append(changes, Change{Kind: Created, Path: name, NewMode: is.mode, NewSize: is.size})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}
