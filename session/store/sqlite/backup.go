package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/session/store"
)

// backupTries is how often a backup takes the database again when a session was removed meanwhile,
// with files that the backup does not have yet.
const backupTries = 10

// Backup copies the store, as of one moment, to a new folder, while programs use it. The copy is a
// store: put it in the place of the other one to restore that. Large blobs are hard links where
// dir is on the same disk. A dir that exists is fs.ErrExist; it appears only when it is whole.
func (s *Store) Backup(ctx context.Context, dir string) error {
	if err := s.backup(ctx, dir); err != nil {
		return s.failed(ctx, "backup", "", err)
	}
	return nil
}

func (s *Store) backup(ctx context.Context, dir string) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); err == nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: fs.ErrExist}
	}
	part, unlock, err := makePart(dir)
	if err != nil {
		return err
	}
	defer unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	for _, sub := range []string{blobFolder, tmpFolder, lockFolder} {
		if err := os.Mkdir(filepath.Join(part, sub), 0o700); err != nil {
			return err
		}
	}
	// Files first, so that few can be removed between the copy of the database and theirs.
	err = s.eachFile(func(digest []byte) error { return unlessGone(s.copyBlob(digest, part)) })
	copied := false
	for try := 0; err == nil && !copied && try < backupTries; try++ {
		copied, err = s.copyDatabase(ctx, part)
	}
	if err == nil && !copied {
		err = fmt.Errorf("%w: sessions are removed all the time; try again", store.ErrBusy)
	}
	if err == nil {
		err = syncTree(part)
	}
	if err == nil {
		err = os.Rename(part, dir) // which fails if dir has files by now
	}
	return errors.Join(err, syncFile(filepath.Dir(dir)))
}

// makePart makes the folder that becomes dir, and removes those of killed backups to dir. A folder
// is locked while its backup runs.
func makePart(dir string) (part string, unlock func(), err error) {
	pattern := "." + filepath.Base(dir) + ".part-"
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return "", nil, err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), pattern) {
			continue
		}
		name := filepath.Join(filepath.Dir(dir), entry.Name())
		if unlock, err := lockPart(name); err == nil {
			err = os.RemoveAll(name)
			unlock()
			if err != nil {
				return "", nil, err
			}
		}
	}
	if part, err = os.MkdirTemp(filepath.Dir(dir), pattern+"*"); err != nil {
		return "", nil, err
	}
	unlock, err = lockPart(part)
	if err == nil {
		_, err = os.Stat(part)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%w: another backup to %s began; try again: %w", store.ErrBusy, dir, err)
	}
	return part, unlock, nil
}

// lockPart locks the folder of a backup, or fails if it is locked.
func lockPart(name string) (unlock func(), err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	ok, err := tryLock(f)
	if err == nil && !ok {
		err = store.ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// copyDatabase copies the database and the files that it needs. It reports false if one of these
// was removed from the store after its session.
func (s *Store) copyDatabase(ctx context.Context, part string) (_ bool, err error) {
	name := filepath.Join(part, Database)
	if err := unlessGone(os.Remove(name)); err != nil {
		return false, err
	}
	if _, err := s.r.ExecContext(ctx, "VACUUM INTO ?", name); err != nil {
		return false, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return false, err
	}
	db, err := connect(name, "", busyTimeout, 1, nil)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, "SELECT digest FROM blob WHERE content IS NULL")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var digest []byte
		if err := rows.Scan(raw(&digest)); err != nil {
			return false, err
		}
		err := s.copyBlob(digest, part)
		if errors.Is(err, fs.ErrNotExist) {
			lost, findErr := s.misses(ctx, digest)
			if findErr != nil || !lost {
				return false, findErr
			}
			continue // it is damaged, and so is the backup
		}
		if err != nil {
			return false, err
		}
	}
	return true, rows.Err()
}

// misses reports whether the store still has a blob whose file is gone.
func (s *Store) misses(ctx context.Context, digest []byte) (bool, error) {
	var n int64
	err := s.r.QueryRowContext(ctx, "SELECT count(*) FROM blob WHERE digest = ?", digest).Scan(integer(&n))
	if err != nil || n == 0 {
		return false, err
	}
	_, err = os.Stat(s.file(digest)) // stored again meanwhile
	return errors.Is(err, fs.ErrNotExist), unlessGone(err)
}

// copyBlob links or copies the file of a blob, unless it was copied before.
func (s *Store) copyBlob(digest []byte, part string) error {
	to := (&Store{dir: part}).file(digest)
	err := os.Link(s.file(digest), to)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		err = os.Link(s.file(digest), to)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EMLINK), errors.Is(err, errors.ErrUnsupported):
		return copyFile(s.file(digest), to)
	}
	return err
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// syncTree makes a folder durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncFile(name)
	})
}
