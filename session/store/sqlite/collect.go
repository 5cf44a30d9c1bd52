package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// abandoned is how long nothing was written to a file in tmp/ that its program has left.
const abandoned = time.Hour

// errDry ends the transaction of a collection that only looks.
var errDry = errors.New("only looked")

// Collect removes what programs that were killed have left: blobs that no session has, and
// files that are being written by none. It gives the space of what was removed back to the
// file system, and returns the names of the blobs and files. With dry it removes nothing.
func (s *Store) Collect(ctx context.Context, dry bool) (removed []string, err error) {
	remove := os.Remove
	if dry {
		remove = func(string) error { return nil }
	}
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if removed, err = s.removeBlobs(ctx, tx, remove, ""); err != nil {
			return err
		}
		if err := s.eachUnknown(ctx, tx, func(name string) error {
			digest := filepath.Base(filepath.Dir(name)) + filepath.Base(name)
			if slices.Contains(removed, digest) {
				return nil // a blob that was only looked at
			}
			removed = append(removed, digest)
			return remove(name)
		}); err != nil || !dry {
			return err
		}
		return errDry
	})
	if err == nil || errors.Is(err, errDry) {
		err = s.eachAbandoned(func(name string) error {
			removed = append(removed, filepath.Base(name))
			return remove(name)
		})
	}
	if err == nil && !dry {
		_, err = s.w.ExecContext(ctx, "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
	}
	if err != nil {
		return removed, s.failed(ctx, "collect", "", err)
	}
	return removed, nil
}

// eachUnknown calls f with the files that the database does not know.
func (s *Store) eachUnknown(ctx context.Context, tx *sql.Tx, f func(name string) error) error {
	folders, err := os.ReadDir(filepath.Join(s.dir, blobFolder))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(s.dir, blobFolder, folder.Name()))
		if err != nil {
			return err
		}
		for _, file := range files {
			digest, err := hex.DecodeString(folder.Name() + file.Name())
			if err != nil {
				continue // is not the store's
			}
			var known bool
			err = tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM blob WHERE digest = ?)", digest).Scan(&known)
			if err == nil && !known {
				err = f(s.file(digest))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// eachAbandoned calls f with the files in tmp/ that no program writes any more.
func (s *Store) eachAbandoned(f func(name string) error) error {
	files, err := os.ReadDir(filepath.Join(s.dir, tmpFolder))
	if err != nil {
		return err
	}
	for _, file := range files {
		info, err := file.Info()
		if err == nil && time.Since(info.ModTime()) > abandoned {
			err = f(filepath.Join(s.dir, tmpFolder, file.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else it was stored meanwhile
			return err
		}
	}
	return nil
}
