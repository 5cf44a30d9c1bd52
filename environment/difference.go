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
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
)

// baseline is the workspace as it was when the sources were placed.
type baseline struct {
	mu     sync.RWMutex                // held for reading while the state is in use
	read   func(context.Context) error // reads the state at its first use; nil once that is done
	root   workspace.Digest
	blobs  workspace.Blobs
	own    *workspace.Temporary // blobs, if this environment has them
	index  workspace.Index      // what is known of the sandbox's files; only copies of it are used
	err    error                // why there is no state
	closed bool
}

// files gives package workspace access to the workspace of a sandbox.
type files struct {
	p primitives.EnvironmentPrimitive
}

func (f files) Files() primitives.Files { return f.p }

func (f files) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	return primitives.Pack(ctx, f.p, ".", opts)
}

// begin prepares for what is placed in the workspace of a new sandbox.
func (b *baseline) begin(cfg Config) *workspace.Tracker {
	if cfg.sharesStates() {
		return cfg.Session.States
	}
	b.own = workspace.NewTemporary(nil)
	return &workspace.Tracker{Blobs: b.own, Options: workspace.Options{Skip: ignoring(cfg.ignorePatterns())}}
}

// sharesStates reports whether the baseline is a state of the session. A session that leaves out files would show them as
// created.
func (c Config) sharesStates() bool { return c.Session.States != nil && len(c.Checkpoints.Ignore) == 0 }

// ignoring returns a function that reports whether a path matches one of the patterns.
func ignoring(patterns []string) func(string) bool {
	return func(name string) bool { return workspace.IgnoredItself(patterns, name) }
}

// take stores the state of the workspace of a new sandbox, in which no process writes. If the sandbox cannot pack files
// there is no baseline, and use returns the error.
func (b *baseline) take(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, states *workspace.Tracker) error {
	st, err := states.Take(ctx, files{p}, states.Blobs, states.Options)
	if err != nil && cfg.sharesStates() && ctx.Err() == nil && !errors.Is(err, errors.ErrUnsupported) {
		// It is too large for a session's store. The session says so with its first checkpoint.
		cfg.Session.States = nil
		states = b.begin(cfg)
		st, err = states.Take(ctx, files{p}, states.Blobs, states.Options)
	}
	b.root, b.blobs, b.index, b.err = st.Root, states.Blobs, states.Index, err
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// found sets the state to one that the sandbox has kept itself.
func (b *baseline) found(ctx context.Context, r io.Reader) error {
	own := workspace.NewTemporary(nil)
	st, _, err := workspace.Read(ctx, r, own, archive.Limit{})
	if err != nil {
		return errors.Join(err, own.Close())
	}
	b.root, b.blobs, b.own = st.Root, own, own
	return nil
}

// use calls f with the baseline, which close does not end meanwhile.
func (b *baseline) use(ctx context.Context, f func() error) error {
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
	return f()
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
	if err := b.read(ctx); err != nil {
		return fmt.Errorf("read what the workspace began with: %w", err)
	}
	b.read = nil
	return nil
}

// pack writes the baseline as an archive, without what does not count as a change.
func (b *baseline) pack(ctx context.Context, ignore []string, w io.Writer) error {
	return workspace.Pack(ctx, b.blobs, b.root, ignoring(ignore), w)
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
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.own
	if b.own = of.own; b.own != nil {
		b.own.Share()
	}
	// What is known of the files of this sandbox may name blobs that the other does not have.
	b.read, b.root, b.blobs, b.index, b.err = nil, of.root, of.blobs, workspace.Index{}, of.err
	return old.Close()
}

func (b *baseline) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	return b.own.Close()
}

// difference is what has changed since the baseline.
type difference struct {
	changes      []workspace.Change
	old, current workspace.Digest
	blobs        *workspace.Temporary
}

// differ calls f with the changes of the workspace. Their contents can be read if contents is true.
func (e *Environment) differ(ctx context.Context, contents bool, f func(difference) error) error {
	b := &e.base
	return b.use(ctx, func() (err error) {
		blobs := workspace.NewTemporary(b.blobs)
		defer func() { err = errors.Join(err, blobs.Close()) }()
		index := b.index
		ignored := ignoring(e.cfg.ignorePatterns())
		now, err := index.Take(ctx, files{e.prim}, blobs, workspace.Options{Skip: ignored, NoContents: !contents})
		if err != nil {
			return err
		}
		if len(now.Unreadable) > 0 { // they would be shown, and applied, as deleted
			return fmt.Errorf("%w: %s", fs.ErrPermission, strings.Join(now.Unreadable, ", "))
		}
		changes, err := workspace.Compare(ctx, blobs, b.root, now.Root, ignored)
		if err != nil {
			return err
		}
		return f(difference{changes: changes, old: b.root, current: now.Root, blobs: blobs})
	})
}

// ignorePatterns returns the patterns that Changes, Patch and Apply ignore: git's own files, which
// git cannot patch, and Config.IgnoreChanges. leaveOut skips what a copied folder ignored.
func (c Config) ignorePatterns() []string { return append([]string{".git"}, c.IgnoreChanges...) }

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
