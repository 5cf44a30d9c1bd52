package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
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

// Collect removes the orphans of killed programs: blobs without a session, temporary files
// without a writer, and the rest of deleted sessions. It returns the freed space to the file
// system, and the names of the blobs and files to the caller. With dry it removes nothing.
func (s *Store) Collect(ctx context.Context, dry bool) (removed []string, err error) {
	if dry {
		removed, err = s.collect(ctx, func(string) error { return nil }, errDry)
	} else {
		err = s.withReserve(func() (err error) {
			var deleted []int64
			if deleted, err = numbers(ctx, s.r, hidden); err == nil {
				err = s.purge(ctx, deleted)
			}
			if err != nil {
				return err
			}
			if removed, err = s.collect(ctx, os.Remove, nil); err != nil {
				return err
			}
			return s.shrink(ctx, 0, "TRUNCATE")
		})
	}
	if err != nil {
		return removed, s.failed(ctx, "collect", "", err)
	}
	return removed, nil
}

// collect removes blobs and files. end is the error that ends the transaction.
func (s *Store) collect(ctx context.Context, remove func(string) error, end error) (removed []string, err error) {
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
		}); err != nil {
			return err
		}
		return end
	})
	if err != nil && !errors.Is(err, errDry) {
		return removed, err
	}
	return removed, s.eachAbandoned(func(name string) error {
		removed = append(removed, filepath.Base(name))
		return remove(name)
	})
}

// shrink returns the free pages of the database to the file system if there are more than enough, in
// steps that need little room. Where readers use old pages it returns what it can, if the checkpoint
// is PASSIVE, or waits for them.
func (s *Store) shrink(ctx context.Context, enough int64, checkpoint string) error {
	for left := int64(0); ; {
		var free int64
		if err := s.w.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(&free); err != nil {
			return err
		}
		// Readers keep old pages, and then nothing is freed.
		vacuum := fmt.Sprintf("PRAGMA incremental_vacuum(%d); ", purgedAtOnce)
		if free <= enough || free == left {
			vacuum = ""
		}
		if _, err := s.w.ExecContext(ctx, vacuum+"PRAGMA wal_checkpoint("+checkpoint+")"); err != nil || vacuum == "" {
			return err
		}
		left = free
	}
}

// eachUnknown calls f for each file that no blob is in.
func (s *Store) eachUnknown(ctx context.Context, tx *sql.Tx, f func(name string) error) error {
	return s.eachFile(func(digest []byte) error {
		var known bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM blob WHERE digest = ? AND content IS NULL)", digest).Scan(&known)
		if err != nil || known {
			return err
		}
		return f(s.file(digest))
	})
}

// eachFile calls f with the digest of each file in blobs/.
func (s *Store) eachFile(f func(digest []byte) error) error {
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
			if err := f(digest); err != nil {
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
