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

// abandoned is the age at which an unchanged file in tmp/ is orphaned.
const abandoned = time.Hour

// errDry rolls back a dry collection.
var errDry = errors.New("only looked")

// Collect removes the orphans of killed programs: blobs without a session, and temporary files
// without a writer. It returns the freed space to the file system, and the names of the blobs
// and files to the caller. With dry it removes nothing.
func (s *Store) Collect(ctx context.Context, dry bool) (removed []string, err error) {
	remove := os.Remove
	if dry {
		remove = func(string) error { return nil }
	}
	err = s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) error {
		if removed, err = s.removeBlobs(ctx, tx, remove, ""); err != nil {
			return err
		}
		if err := s.eachUnknown(ctx, tx, func(name string) error {
			digest := filepath.Base(filepath.Dir(name)) + filepath.Base(name)
			if slices.Contains(removed, digest) {
				return nil // found by the dry run
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

// eachUnknown calls f for each file that is not in the database.
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
				continue // not a file of the store
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

// eachAbandoned calls f for each orphaned file in tmp/.
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a missing file was stored meanwhile
			return err
		}
	}
	return nil
}
