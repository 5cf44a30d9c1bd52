package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	blobFolder = "blobs"
	tmpFolder  = "tmp"
)

// file returns the path of a large blob.
func (s *Store) file(digest []byte) string {
	name := hex.EncodeToString(digest)
	return filepath.Join(s.dir, blobFolder, name[:2], name[2:])
}

// rawDigest returns a digest as stored in the database; nil if d is invalid.
func rawDigest(d store.Digest) []byte {
	raw, err := hex.DecodeString(string(d))
	if err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != string(d) {
		return nil
	}
	return raw
}

// Blob returns the content of a blob.
func (s *Store) Blob(ctx context.Context, id string, d store.Digest) (io.ReadCloser, error) {
	r, err := s.blob(ctx, id, d)
	if err != nil {
		return nil, s.failed(ctx, "blob", id, err)
	}
	return r, nil
}

func (s *Store) blob(ctx context.Context, id string, d store.Digest) (io.ReadCloser, error) {
	h, err := headOf(ctx, s.r, id)
	if err != nil {
		return nil, err
	}
	var content []byte
	var file int64
	err = s.r.QueryRowContext(ctx,
		"SELECT content, content IS NULL FROM blob JOIN session_blob ON blob = n WHERE session = ? AND digest = ?", h.n, rawDigest(d)).
		Scan(raw(&content), integer(&file))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("%w: no blob %s", fs.ErrNotExist, d)
	case errors.Is(err, errColumn):
		return nil, damaged(d)
	case err != nil:
		return nil, err
	case file != 0:
		return s.openFile(d)
	}
	if sum := sha256.Sum256(content); !bytes.Equal(sum[:], rawDigest(d)) {
		return nil, damaged(d)
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func damaged(d store.Digest) error { return fmt.Errorf("%w: blob %s", store.ErrCorrupt, d) }

func (s *Store) openFile(d store.Digest) (io.ReadCloser, error) {
	f, err := os.Open(s.file(rawDigest(d)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged(d)
	}
	if err != nil {
		return nil, err
	}
	return &checkedFile{File: f, sum: sha256.New(), digest: d}, nil
}

// checkedFile is a file that returns io.EOF only if its content matches its digest.
type checkedFile struct {
	*os.File
	sum    hash.Hash
	digest store.Digest
}

// Read reads the file. The data is verified only when Read returns io.EOF.
func (f *checkedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && !bytes.Equal(f.sum.Sum(nil), rawDigest(f.digest)) {
		return n, &store.Error{Op: "blob", Err: damaged(f.digest)}
	}
	return n, err
}

// WriteTo uses Read, so that the promoted WriteTo of the file cannot skip the check.
func (f *checkedFile) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{f})
}

// RemoveBlobs removes blobs of a session.
func (s *Store) RemoveBlobs(ctx context.Context, id string, digests ...store.Digest) error {
	var blobs []int64
	// It is on the disk before files are removed: no power failure brings back a blob without its
	// file.
	err := s.transact(ctx, true, func(ctx context.Context, tx *sql.Tx) error {
		h, err := headOf(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, d := range digests {
			removed, err := numbers(ctx, tx,
				"DELETE FROM session_blob WHERE session = ? AND blob = (SELECT n FROM blob WHERE digest = ?) RETURNING blob", h.n, rawDigest(d))
			if err != nil {
				return err
			}
			blobs = append(blobs, removed...)
		}
		return nil
	})
	if err == nil {
		err = s.release(context.WithoutCancel(ctx), blobs)
	}
	return s.failure("remove", id, err)
}

// release removes the given blobs that belong to no session any more. It runs in its own
// transaction: if it fails after it has removed files, no session needs these.
func (s *Store) release(ctx context.Context, blobs []int64) error {
	if len(blobs) == 0 {
		return nil
	}
	return s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) error {
		for _, n := range blobs {
			if _, err := s.removeBlobs(ctx, tx, os.Remove, "n = ? AND ", n); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeBlobs removes the blobs that belong to no session and match the condition, and returns
// their names. remove removes a file.
func (s *Store) removeBlobs(
	ctx context.Context, tx *sql.Tx, remove func(string) error, condition string, args ...any,
) (removed []string, err error) {
	rows, err := tx.QueryContext(ctx, "DELETE FROM blob WHERE "+condition+
		"NOT EXISTS (SELECT 1 FROM session_blob WHERE blob = n) RETURNING digest, content IS NULL", args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var digest []byte
		var file bool
		if err := rows.Scan(&digest, &file); err != nil {
			return removed, err
		}
		removed = append(removed, hex.EncodeToString(digest))
		if !file {
			continue
		}
		if err := remove(s.file(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
	}
	return removed, rows.Err()
}
