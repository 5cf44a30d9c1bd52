// Package sessionstore opens the default session store of this user, which all programs of this
// machine share unless they choose another one.
package sessionstore

import (
	"context"
	"errors"
	"io/fs"

	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// folder is the name of the store's folder in the state folder.
const folder = "sessions"

// Open opens the store, and creates it if it is missing. The caller must close it.
func Open(ctx context.Context) (*sqlite.Store, error) {
	return open(ctx, nil)
}

// OpenExisting opens the store, or returns fs.ErrNotExist if there is none. The caller must
// close it.
func OpenExisting(ctx context.Context) (*sqlite.Store, error) {
	return open(ctx, func(root fs.FS) error {
		_, err := fs.Stat(root, sqlite.Database)
		return err
	})
}

func open(ctx context.Context, check func(fs.FS) error) (_ *sqlite.Store, err error) {
	root, err := statedir.Open(folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if check != nil {
		if err := check(root.FS()); err != nil {
			return nil, err
		}
	}
	return sqlite.Open(ctx, root.Name())
}
