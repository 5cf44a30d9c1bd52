package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
)

// List returns the sandboxes below p.Root that were not terminated, oldest first. It does not
// attach to them. If it cannot trust a default root, because another user has made that, it reads
// nothing below it and returns fs.ErrPermission beside the sandboxes of another root.
func (p Provider) List(ctx context.Context) ([]primitives.Info, error) {
	var list []primitives.Info
	var errs []error
	for _, root := range rootFolders(p.Root, os.Geteuid()) {
		entries, err := entriesOf(root, p.Root == "")
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
	slices.SortFunc(list, func(a, b primitives.Info) int { return a.Created.Compare(b.Created) })
	return list, errors.Join(errs...)
}

// entriesOf lists a root. A missing root is empty.
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

// describe returns the Info of a session folder. It returns false if the folder holds no live
// sandbox, or vanishes meanwhile.
func describe(session string) (primitives.Info, bool) {
	st := state{Session: session}
	if !isID(filepath.Base(session)) || st.load() != nil {
		return primitives.Info{}, false
	}
	life, err := os.Lstat(st.file(lifeFile))
	if err != nil || isEnded(life) {
		return primitives.Info{}, false
	}
	by := st.owner()
	info := primitives.Info{
		ID: st.ID, Status: primitives.StatusRunning, Created: st.Created,
		Owned: by == owner.Alive, Kept: st.Keep, Orphan: by == owner.Dead && !st.Keep,
		Session: st.For, Owner: cmp.Or(st.OwnerName, fmt.Sprintf("%s:%d", st.Host, st.Owner.PID)),
	}
	// A new life file has the time of its creation; see aloneSince.
	if since := life.ModTime(); info.Orphan && since.After(neverAlone) {
		info.OrphanSince = since.UTC()
	}
	return info, true
}
