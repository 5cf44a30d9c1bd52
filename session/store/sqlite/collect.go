package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// abandoned is how long nothing was written to a file in tmp/ that its program has left.
const abandoned = time.Hour

// Collect removes what programs that were killed have left: blobs that no session has, and
// files that are being written by none. It gives the space of what was removed back to the
// file system, and returns the number of blobs and files.
func (s *Store) Collect(ctx context.Context) (removed int, err error) {
	err = s.write(ctx, "collect", "", func(ctx context.Context, tx *sql.Tx) error {
		if removed, err = s.removeBlobs(ctx, tx, ""); err != nil {
			return err
		}
		n, err := s.removeUnknown(ctx, tx)
		removed += n
		return err
	})
	if err != nil {
		return 0, err
	}
	n, err := s.removeAbandoned()
	removed += n
	if err == nil {
		_, err = s.w.ExecContext(ctx, "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
	}
	if err != nil {
		return removed, s.failed(ctx, "collect", "", err)
	}
	return removed, nil
}

// removeUnknown removes the files that the database does not know.
func (s *Store) removeUnknown(ctx context.Context, tx *sql.Tx) (removed int, err error) {
	folders, err := os.ReadDir(filepath.Join(s.dir, blobFolder))
	if err != nil {
		return 0, err
	}
	for _, folder := range folders {
		files, err := os.ReadDir(filepath.Join(s.dir, blobFolder, folder.Name()))
		if err != nil {
			return removed, err
		}
		for _, f := range files {
			digest, err := hex.DecodeString(folder.Name() + f.Name())
			if err != nil {
				continue // is not the store's
			}
			var known bool
			err = tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM blob WHERE digest = ? AND content IS NULL)", digest).Scan(&known)
			if err == nil && !known {
				err = os.Remove(s.file(digest))
				removed++
			}
			if err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

func (s *Store) removeAbandoned() (removed int, err error) {
	files, err := os.ReadDir(filepath.Join(s.dir, tmpFolder))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err == nil && time.Since(info.ModTime()) > abandoned {
			err = os.Remove(filepath.Join(s.dir, tmpFolder, f.Name()))
			removed++
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else it was stored meanwhile
			return removed, err
		}
	}
	return removed, nil
}
