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
	"iter"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	blobFolder = "blobs"
	tmpFolder  = "tmp"
	// maxInline is the size up to which blobs are stored in the database, which is faster than
	// a file system for small blobs.
	maxInline = 64 << 10
	// maxPending is how many bytes of small blobs are stored in one transaction.
	maxPending = 4 << 20
	// mostPending is how many blobs are stored in one transaction. Their files are renamed
	// within the transaction, for which other programs wait.
	mostPending = 100
)

// pendingBlob is a blob that was read but not stored yet.
type pendingBlob struct {
	digest  []byte
	content []byte // nil if it is a file
	tmp     string // the file
	size    int64  // of the file
}

// PutBlobs stores contents for a session.
func (s *Store) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	if _, err := headOf(ctx, s.r, id); err != nil {
		return nil, s.failed(ctx, "put", id, err)
	}
	var digests []store.Digest
	var pending []pendingBlob
	defer func() {
		for _, b := range pending {
			if b.tmp != "" {
				_ = os.Remove(b.tmp) // if it was not stored
			}
		}
	}()
	size := 0
	flush := func() error {
		err := s.putPending(ctx, id, pending)
		if err == nil {
			pending, size = nil, 0
		}
		return err
	}
	for r, err := range contents {
		var b pendingBlob
		if err == nil {
			b, err = s.readBlob(r)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, s.failure("put", id, errors.Join(err, remove(b.tmp)))
		}
		pending = append(pending, b)
		digests = append(digests, store.Digest(hex.EncodeToString(b.digest)))
		if size += len(b.content); size >= maxPending || len(pending) >= mostPending {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if len(pending) == 0 {
		return digests, nil
	}
	return digests, flush()
}

func remove(name string) error {
	if name == "" {
		return nil
	}
	return os.Remove(name)
}

// readBlob reads a blob to its end, into a file if it is large.
func (s *Store) readBlob(r io.Reader) (pendingBlob, error) {
	var head bytes.Buffer
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(&head, sum), io.LimitReader(r, maxInline+1))
	if err != nil {
		return pendingBlob{}, err
	}
	if n <= maxInline {
		return pendingBlob{digest: sum.Sum(nil), content: append([]byte{}, head.Bytes()...)}, nil
	}
	f, err := os.CreateTemp(filepath.Join(s.dir, tmpFolder), "blob-*")
	if err != nil {
		return pendingBlob{}, err
	}
	size, err := io.Copy(f, io.MultiReader(&head, io.TeeReader(r, sum)))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return pendingBlob{}, errors.Join(err, os.Remove(f.Name()))
	}
	return pendingBlob{digest: sum.Sum(nil), tmp: f.Name(), size: size}, nil
}

// putPending stores blobs. It renames files within the transaction, as removeBlobs removes them
// within one, so that no session removes a file that another session has just added.
func (s *Store) putPending(ctx context.Context, id string, blobs []pendingBlob) error {
	return s.write(ctx, "put", id, func(ctx context.Context, tx *sql.Tx) error {
		h, err := headOf(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, b := range blobs {
			if b.tmp != "" {
				// Replace an existing file, which may be damaged.
				if err := rename(b.tmp, s.file(b.digest)); err != nil {
					return err
				}
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO blob (digest, content, size) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", b.digest, b.content, b.size)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx,
				"INSERT INTO session_blob (session, blob, seq) SELECT ?, n, ? FROM blob WHERE digest = ? ON CONFLICT DO NOTHING", h.n, h.last, b.digest)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// file returns the path of a large blob.
func (s *Store) file(digest []byte) string {
	name := hex.EncodeToString(digest)
	return filepath.Join(s.dir, blobFolder, name[:2], name[2:])
}

// rename renames a file durably: a power failure loses neither the name nor the content.
func rename(from, to string) error {
	folder := filepath.Dir(to)
	err := os.Mkdir(folder, 0o700)
	if err == nil {
		err = syncFile(filepath.Dir(folder))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncFile(folder)
}

// syncFile makes the content of a file, or the names in a folder, durable.
func syncFile(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
