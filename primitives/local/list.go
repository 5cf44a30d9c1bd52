package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// Info describes a sandbox that [List] found.
type Info struct {
	ID      string
	Created time.Time
	// Owned says that the program that made it still runs.
	Owned bool
	// Kept says that it outlives its program, see [Config].Stay.
	Kept bool
}

// List returns the sandboxes below cfg.Root that were not terminated, oldest
// first. Of cfg only Root counts. It does not attach to them. Where a default root
// cannot be trusted, because another user has made it, nothing below it is read:
// fs.ErrPermission, beside the sandboxes of another root.
func List(ctx context.Context, cfg Config) ([]Info, error) {
	var list []Info
	var errs []error
	for _, root := range rootFolders(cfg, os.Geteuid()) {
		entries, err := entriesOf(root, cfg.Root == "")
		if err != nil {
			errs = append(errs, wrap("list", root, err))
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return nil, wrap("list", root, err)
			}
			if info, ok := describe(filepath.Join(root, e.Name())); ok {
				list = append(list, info)
			}
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return a.Created.Compare(b.Created) })
	return list, errors.Join(errs...)
}

// entriesOf lists a root; one that is missing is empty.
func entriesOf(root string, isDefault bool) ([]fs.DirEntry, error) {
	err := trustRoot(root, isDefault)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(root)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// describe looks at one session folder, which may vanish meanwhile.
func describe(session string) (Info, bool) {
	st := state{Session: session}
	if !isID(filepath.Base(session)) || st.load() != nil {
		return Info{}, false
	}
	if life, err := os.Lstat(st.file(lifeFile)); err != nil || isEnded(life) {
		return Info{}, false
	}
	return Info{ID: st.ID, Created: st.Created, Owned: st.Boot == proctree.BootID() && proctree.Alive(st.Owner), Kept: st.Stay}, true
}
