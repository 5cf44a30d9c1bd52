package environment

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/internal/workspace"
)

// Ignored returns how many new files of the workspace the last call of [Environment.Changes],
// [Environment.Patch], [Environment.Apply] or [Environment.Run] left out because git ignores
// them. It is zero before the first one.
func (e *Environment) Ignored() int { return int(e.ignored.Load()) }

// leaveOut returns the changes without those of files that are left out: files that match
// Folder.Ignore, and new files that git ignores. It counts the latter.
func (e *Environment) leaveOut(ctx context.Context, folders []Source, d difference) ([]workspace.Change, error) {
	changes := d.changes
	var created, others []string // new files, and those of them outside of the folders
	for _, c := range changes {
		if c.Old == nil {
			created = append(created, c.Path)
		}
		if c.Old == nil && !slices.ContainsFunc(folders, func(s Source) bool { _, in := s.within(c.Path); return in }) {
			others = append(others, c.Path)
		}
	}
	rules, err := workspace.Gitignores(ctx, d.blobs, d.current, created)
	if err != nil {
		return nil, err
	}
	l := leftOut{rules: rules, unwanted: make(map[string]bool), ignored: make(map[string]bool)}
	if err := l.ignore(ctx, Source{Folder: &Folder{}}, others); err != nil {
		return nil, err
	}
	for _, s := range folders {
		if err := l.folder(ctx, s, changes); err != nil {
			return nil, err
		}
	}
	count := 0
	changes = slices.DeleteFunc(changes, func(c workspace.Change) bool {
		if l.ignored[c.Path] && !l.unwanted[c.Path] {
			count++
		}
		return l.ignored[c.Path] || l.unwanted[c.Path]
	})
	e.ignored.Store(int64(count))
	return changes, nil
}

// leftOut has the paths that are no changes.
type leftOut struct {
	rules    map[string][]byte // the .gitignore files of the workspace by their paths
	unwanted map[string]bool   // by Folder.Ignore
	ignored  map[string]bool   // new files, by git
}

// folder adds what a folder leaves out.
func (l *leftOut) folder(ctx context.Context, s Source, changes []workspace.Change) error {
	var created []string
	for _, c := range changes {
		name, in := s.within(c.Path)
		switch {
		case !in:
		case workspace.Ignored(s.Folder.Ignore, name):
			l.unwanted[c.Path] = true
		case s.Folder.Gitignore && c.Old == nil:
			created = append(created, name)
		}
	}
	return l.ignore(ctx, s, created)
}

// ignore adds those of some new files, given by their paths below the source, that git ignores: by
// the rules of the folder, if it still exists, and by the .gitignore files of the workspace.
func (l *leftOut) ignore(ctx context.Context, s Source, names []string) error {
	if len(names) == 0 {
		return nil
	}
	rules := make(map[string][]byte)
	for name, content := range l.rules {
		if name, in := s.within(name); in {
			rules[name] = content
		}
	}
	found, err := hostgit.Ignored(ctx, s.Folder.Path, rules, names)
	for _, name := range found {
		l.ignored[path.Join(s.Into, name)] = true
	}
	return err
}

// within returns a path of the workspace as a path below the source.
func (s Source) within(name string) (below string, in bool) {
	if into := path.Join(".", s.Into); into != "." {
		return strings.CutPrefix(name, into+"/")
	}
	return name, true
}

// addFilters sets Filter of changes in folders of this machine.
func (e *Environment) addFilters(ctx context.Context, folders []Source, changes []Change) error {
	for _, s := range folders {
		var names []string
		for _, c := range changes {
			if name, in := s.within(c.Path); in {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		found, err := hostgit.Filters(ctx, s.Folder.Path, names)
		if errors.Is(err, hostgit.ErrFailed) {
			e.log.Warn("git does not tell what it converts", "folder", s.Folder.Path, "error", err)
			continue // nor does it apply a patch there
		}
		if err != nil {
			return err
		}
		for i, c := range changes {
			if name, in := s.within(c.Path); in && found[name] != "" {
				changes[i].Filter = found[name]
			}
		}
	}
	return nil
}
