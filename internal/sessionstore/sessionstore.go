// Package sessionstore is the store of this user's sessions, which all programs of this
// machine share that do not choose another one.
package sessionstore

import (
	"context"
	"errors"
	"io/fs"

	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// folder is that of the store in the state folder.
const folder = "sessions"

// Open opens the store, and makes it if it is missing. The caller closes it.
func Open(ctx context.Context) (*sqlite.Store, error) {
	return open(ctx, nil)
}

// OpenExisting opens the store, or returns fs.ErrNotExist if no session was ever stored.
// The caller closes it.
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
