// Package sessionstore opens the default session store of this user, which all programs of this
// machine share unless they choose another one.
package sessionstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// folder is the name of the store's folder in the state folder.
const folder = "sessions"

// DurabilityVariable names the environment variable with the durability of the store: fast, query
// or event. Empty means the default.
const DurabilityVariable = "AGENTENV_DURABILITY"

// MaxSizeVariable names the environment variable with the size that the store may have, as in 50GiB,
// or none. Empty means the default.
const MaxSizeVariable = "AGENTENV_MAX_STORE_SIZE"

// Open opens the store, and creates it if it is missing. The caller must close it.
func Open(ctx context.Context) (*sqlite.Store, error) {
	return open(ctx, sqlite.Config{}, nil)
}

// OpenExisting opens the store, or returns fs.ErrNotExist if there is none. The caller must
// close it.
func OpenExisting(ctx context.Context) (*sqlite.Store, error) {
	return open(ctx, sqlite.Config{}, exists)
}

// OpenToRead is OpenExisting for a caller that changes nothing: it also works on a full or
// read-only disk.
func OpenToRead(ctx context.Context) (*sqlite.Store, error) {
	s, err := open(ctx, sqlite.Config{ReadOnly: true}, nil)
	if errors.Is(err, errors.ErrUnsupported) { // of an older version
		return OpenExisting(ctx)
	}
	return s, err
}

func exists(root fs.FS) error {
	_, err := fs.Stat(root, sqlite.Database)
	return err
}

func open(ctx context.Context, cfg sqlite.Config, check func(fs.FS) error) (_ *sqlite.Store, err error) {
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
	if text := os.Getenv(MaxSizeVariable); text != "" {
		size, err := primitives.ParseSize(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", MaxSizeVariable, err)
		}
		cfg.MaxSize = int64(size)
	}
	cfg.Durability = sqlite.Durability(os.Getenv(DurabilityVariable))
	s, err := cfg.Open(ctx, root.Name())
	if errors.Is(err, fs.ErrInvalid) {
		err = fmt.Errorf("%s: %w", DurabilityVariable, err)
	}
	return s, err
}
