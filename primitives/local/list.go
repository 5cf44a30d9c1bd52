package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// Info describes a sandbox that [List] found.
type Info struct {
	ID      string
	Created time.Time
	// Owned says that the program that made it still runs.
	Owned bool
}

// List returns the sandboxes below cfg.Root that were not terminated, oldest
// first. Of cfg only Root counts. It does not attach to them.
func List(ctx context.Context, cfg Config) ([]Info, error) {
	var list []Info
	for _, root := range rootFolders(cfg, os.Geteuid()) {
		entries, err := os.ReadDir(root)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, wrap("list", root, err)
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
	return list, nil
}

// describe looks at one session folder, which may vanish meanwhile.
func describe(session string) (Info, bool) {
	st := state{Session: session}
	app := primitives.PathsIn(session).App
	if err := readJSON(filepath.Join(app, stateFile), &st); err != nil {
		return Info{}, false
	}
	if life, err := os.Stat(filepath.Join(app, lifeFile)); err != nil || isEnded(life) {
		return Info{}, false
	}
	return Info{ID: st.ID, Created: st.Created, Owned: st.Boot == proctree.BootID() && proctree.Alive(st.Owner)}, true
}
