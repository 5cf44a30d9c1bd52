package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
)

// ErrConflict says that a folder of this machine is not as the workspace began, so that
// changes do not apply to it.
var ErrConflict = errors.New("the folder has changed meanwhile")

// Apply makes the changes of the workspace in the folder of this machine that it was
// copied from, given as it was in Config.Workspace, and returns the changes that it made.
// What does not count as a change is left out, see [Environment.Changes].
//
// It makes all changes or none. Every file that it would change must be as it was
// copied, and no new one may be in the way: otherwise the error is [ErrConflict]. It never
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
	var made []Change
	err = e.base.use(ctx, func(old *snapshot) (err error) {
		current, err := takeSnapshot(ctx, e.prim, e.cfg.notCounted(), true, old)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, current.close()) }()
		made, err = applyTo(ctx, to, old, current)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("apply the changes to %s: %w", to.Path, err)
	}
	return made, nil
}

func applyTo(ctx context.Context, to Folder, old, current *snapshot) (_ []Change, err error) {
	changes, err := leaveOut(ctx, Source{Folder: &to}, compare(old, current))
	if err != nil {
		return nil, err
	}
	changes = slices.DeleteFunc(changes, func(c Change) bool {
		was, is := old.files[c.Path], current.files[c.Path]
		return c.Kind == Modified && was.sameContent(is) && gitMode(was) == gitMode(is)
	})
	if len(changes) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(to.Path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	t := &treeChange{root: root, old: old, current: current, changes: changes}
	return changes, t.make(ctx)
}

// leaveOut leaves out the changes that a folder of this machine, copied into the
// workspace, would leave out: what matches Ignore and, with Gitignore, new files that git
// ignores there. Where the folder is gone, git ignores nothing.
func leaveOut(ctx context.Context, from Source, changes []Change) ([]Change, error) {
	into := path.Join(".", from.Into)
	within := func(c Change) (name string, ok bool) {
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
		case ignored(from.Folder.Ignore, name):
			out[name] = true
		case from.Folder.Gitignore && c.Kind == Created:
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
	return slices.DeleteFunc(changes, func(c Change) bool { name, ok := within(c); return ok && out[name] }), nil
}
