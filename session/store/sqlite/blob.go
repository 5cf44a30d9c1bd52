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
	"slices"

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
	var content []byte
	var k kept
	err := s.find.QueryRowContext(ctx, id, rawDigest(d)).Scan(raw(&content), integer(&k.file), integer(&k.plain))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if _, err := headOf(ctx, s.r, id); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: no blob %s", fs.ErrNotExist, d)
	case errors.Is(err, errColumn):
		return nil, damaged(d)
	case err != nil:
		return nil, err
	case k.file != 0:
		return s.openFile(d, k.plain)
	}
	return s.verified(content, d, k.plain)
}

// findBlob finds a blob of a session. It is one statement, compiled once, as the files of a workspace
// are read one by one.
const findBlob = "SELECT content, content IS NULL, plain FROM session " +
	"JOIN blob JOIN session_blob ON session_blob.session = session.n AND session_blob.blob = blob.n " +
	"WHERE id = ? AND digest = ?"

// kept says how a blob is stored.
type kept struct {
	file  int64 // not zero if it is a file
	plain int64 // size of the content if it is compressed
}

func damaged(d store.Digest) error { return fmt.Errorf("%w: blob %s", store.ErrCorrupt, d) }

// verified returns a reader of a stored content in memory. If the content is compressed, plain is
// its size.
func (s *Store) verified(content []byte, d store.Digest, plain int64) (io.ReadCloser, error) {
	if plain != 0 {
		var err error
		if content, err = s.coder.unpack(content, plain); err != nil {
			return nil, fmt.Errorf("blob %s: %w", d, err)
		}
	}
	if sum := sha256.Sum256(content); !bytes.Equal(sum[:], rawDigest(d)) {
		return nil, damaged(d)
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// openFile returns a reader of the file of a blob. If it is compressed, plain is the size of the
// content.
func (s *Store) openFile(d store.Digest, plain int64) (_ io.ReadCloser, err error) {
	f, err := os.Open(s.file(rawDigest(d)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged(d)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case plain == 0:
		return &checkedFile{f, sha256.New(), d}, nil
	case plain > maxWhole:
		u, err := unpackStream(f, plain)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &checkedFile{u, sha256.New(), d}, nil
	}
	packed, err := io.ReadAll(io.LimitReader(f, maxWhole))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return s.verified(packed, d, plain)
}

// checkedFile is a file that returns io.EOF only if its content matches its digest.
type checkedFile struct {
	io.ReadCloser
	sum    hash.Hash
	digest store.Digest
}

// Read reads the file. The data is verified only when Read returns io.EOF.
func (f *checkedFile) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	f.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && !bytes.Equal(f.sum.Sum(nil), rawDigest(f.digest)) {
		err = damaged(f.digest)
	}
	if errors.Is(err, store.ErrCorrupt) {
		err = &store.Error{Op: "blob", Err: err}
	}
	return n, err
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
		for some := range slices.Chunk(digests, purgedAtOnce) {
			args := []any{h.n}
			for _, d := range some {
				args = append(args, rawDigest(d))
			}
			removed, err := numbers(ctx, tx, "DELETE FROM session_blob WHERE session = ? AND blob IN "+
				"(SELECT n FROM blob WHERE digest IN "+tuple(len(some))+") RETURNING blob", args...)
			if err != nil {
				return err
			}
			blobs = append(blobs, removed...)
		}
		return nil
	})
	// In other transactions: if one fails after it has removed files, no session needs these.
	for some := range slices.Chunk(blobs, purgedAtOnce) {
		if err != nil {
			break
		}
		err = s.transact(context.WithoutCancel(ctx), false, func(ctx context.Context, tx *sql.Tx) error {
			return s.removeUnused(ctx, tx, some)
		})
	}
	return s.failure("remove", id, err)
}

// removeUnused removes those of the given blobs that belong to no session any more.
func (s *Store) removeUnused(ctx context.Context, tx *sql.Tx, blobs []int64) error {
	if len(blobs) == 0 {
		return nil
	}
	args := make([]any, len(blobs))
	for i, n := range blobs {
		args[i] = n
	}
	_, err := s.removeBlobs(ctx, tx, os.Remove, "n IN "+tuple(len(blobs))+" AND ", args...)
	return err
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
