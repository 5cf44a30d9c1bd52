package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// pieceSize is how many bytes of a content a row has, and batchSize and batchRows how much of small
	// contents is sent at once.
	pieceSize = 1 << 20
	batchSize = 4 << 20
	batchRows = 1000
	// uploadTime limits how long one batch, or one large content, is sent.
	uploadTime = time.Hour
)

// An upload has a row for each of its blobs, so that they are no garbage before their session has them. The
// uploads of programs that died are swept a day later.

// content is a blob that is being stored.
type content struct {
	digest []byte
	size   int64
	small  []byte   // nil for a large one
	file   *os.File // of a large one
}

// PutBlobs stores contents. They are sent one after the other, without a lock of the session.
func (s *Store) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) (digests []store.Digest, err error) {
	if err := s.patiently(ctx, "put", id, func(ctx context.Context) error {
		_, err := headOf(ctx, s.pool, id, unlocked)
		return err
	}); err != nil {
		return nil, err
	}
	u := &upload{s: s, id: rand.Text(), all: make(map[string]bool)}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.drop(context.WithoutCancel(ctx)))
		}
	}()
	for r, err := range contents {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			var d []byte
			if d, err = u.add(ctx, r); err == nil {
				digests = append(digests, store.Digest(hex.EncodeToString(d)))
				u.all[string(d)] = true
			}
		}
		if err != nil {
			return nil, &store.Error{Op: "put", ID: id, Err: err}
		}
	}
	if err := u.send(ctx); err != nil {
		return nil, &store.Error{Op: "put", ID: id, Err: err}
	}
	return digests, s.transact(ctx, "put", id, func(ctx context.Context, tx pgx.Tx) error {
		h, err := headOf(ctx, tx, id, forRead)
		if err == nil {
			err = s.fenced(ctx, tx, id, h.n)
		}
		if err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM upload WHERE id = $1", u.id).Scan(&n); err != nil {
			return err
		}
		if n != len(u.all) {
			return fmt.Errorf("the upload lasted for more than a day, and %d of its %d blobs were removed; put them again", len(u.all)-n, len(u.all))
		}
		if _, err = tx.Exec(ctx, `INSERT INTO session_blob (session, blob, seq)
			SELECT $1, blob, $3 FROM upload JOIN blob ON blob.n = blob WHERE id = $2 ORDER BY digest
			ON CONFLICT DO NOTHING`, h.n, u.id, int64(h.last)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM upload WHERE id = $1", u.id)
		return err
	})
}

// upload is one call of PutBlobs.
type upload struct {
	s     *Store
	id    string
	batch []content
	size  int64
	all   map[string]bool // the digests
}

// add reads a content to its end and returns its digest.
func (u *upload) add(ctx context.Context, r io.Reader) (digest []byte, err error) {
	sum := sha256.New()
	var buf bytes.Buffer
	n, err := io.Copy(io.MultiWriter(&buf, sum), io.LimitReader(r, pieceSize+1))
	if err != nil {
		return nil, err
	}
	c := content{size: n}
	if n <= pieceSize {
		c.digest, c.small = sum.Sum(nil), buf.Bytes()
		u.batch, u.size = append(u.batch, c), u.size+n
		if u.size >= batchSize || len(u.batch) >= batchRows {
			err = u.send(ctx)
		}
		return c.digest, err
	}
	if c.file, err = os.CreateTemp("", "agentenv-blob-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.file.Close()) }()
	if err := os.Remove(c.file.Name()); err != nil {
		return nil, err
	}
	if _, err := c.file.Write(buf.Bytes()); err != nil {
		return nil, err
	}
	more, err := io.Copy(io.MultiWriter(c.file, sum), r)
	if err != nil {
		return nil, err
	}
	c.size, c.digest = n+more, sum.Sum(nil)
	return c.digest, u.store(ctx, []content{c})
}

// send stores the small contents that wait.
func (u *upload) send(ctx context.Context) error {
	batch := u.batch
	u.batch, u.size = nil, 0
	if len(batch) == 0 {
		return nil
	}
	// In one order, so that uploads do not wait for each other in a circle; and one of each.
	slices.SortFunc(batch, func(a, b content) int { return bytes.Compare(a.digest, b.digest) })
	return u.store(ctx, slices.CompactFunc(batch, func(a, b content) bool { return bytes.Equal(a.digest, b.digest) }))
}

// store stores contents that the database does not have, and marks all of them as those of the upload.
func (u *upload) store(ctx context.Context, contents []content) error {
	var digests [][]byte
	var sizes []int64
	byDigest := make(map[string]content)
	for _, c := range contents {
		digests, sizes = append(digests, c.digest), append(sizes, c.size)
		byDigest[string(c.digest)] = c
	}
	attempt := func(ctx context.Context, tx pgx.Tx) error {
		// The update locks the row: it is garbage for no other program before the upload has it.
		rows, err := tx.Query(ctx, `INSERT INTO blob (digest, size) SELECT * FROM unnest($1::bytea[], $2::bigint[])
			ON CONFLICT (digest) DO UPDATE SET size = excluded.size RETURNING n, digest, xmax = 0`, digests, sizes)
		if err != nil {
			return err
		}
		type blob struct {
			N      int64
			Digest []byte
			Fresh  bool
		}
		blobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[blob])
		if err != nil {
			return err
		}
		var ns []int64
		var p pieces
		for _, b := range blobs {
			ns = append(ns, b.N)
			if !b.Fresh {
				continue
			}
			if err := p.add(ctx, tx, b.N, byDigest[string(b.Digest)]); err != nil {
				return err
			}
		}
		if err := p.send(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO upload (id, blob) SELECT $1, * FROM unnest($2::bigint[]) ON CONFLICT DO NOTHING", u.id, ns)
		return err
	}
	err := u.s.retry(ctx, uploadTime, "put", "", func(ctx context.Context) error { return u.s.once(ctx, u.s.uploads, uploadTime, attempt) })
	if failed, ok := errors.AsType[*store.Error](err); ok {
		err = failed.Err
	}
	return err
}

// drop removes what the upload has stored, if no session has it.
func (u *upload) drop(ctx context.Context) error {
	return u.s.once(ctx, u.s.uploads, answerTime, func(ctx context.Context, tx pgx.Tx) error {
		blobs, err := numbers(ctx, tx, "DELETE FROM upload WHERE id = $1 RETURNING blob", u.id)
		if err != nil {
			return err
		}
		return collect(ctx, tx, blobs)
	})
}

// pieces are rows of contents that wait to be sent.
type pieces struct {
	blobs    []int64
	is       []int32
	contents [][]byte
	size     int
}

// add adds a content, of the blob n.
func (p *pieces) add(ctx context.Context, tx pgx.Tx, n int64, c content) error {
	r := io.Reader(bytes.NewReader(c.small))
	if c.file != nil {
		r = io.NewSectionReader(c.file, 0, c.size)
	}
	for i := int32(0); ; i++ {
		piece, err := io.ReadAll(io.LimitReader(r, pieceSize))
		if err != nil || len(piece) == 0 {
			return err
		}
		p.blobs, p.is, p.contents = append(p.blobs, n), append(p.is, i), append(p.contents, piece)
		if p.size += len(piece); p.size >= batchSize {
			if err := p.send(ctx, tx); err != nil {
				return err
			}
		}
	}
}

func (p *pieces) send(ctx context.Context, tx pgx.Tx) error {
	if len(p.blobs) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, "INSERT INTO piece (blob, i, content) SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[])",
		p.blobs, p.is, p.contents)
	*p = pieces{}
	return err
}

// collect removes those of the blobs that neither a session nor an upload has.
func collect(ctx context.Context, tx pgx.Tx, blobs []int64) error {
	if len(blobs) == 0 {
		return nil
	}
	// First the locks, in the order of uploads: then the next statement sees what others have added meanwhile.
	if _, err := tx.Exec(ctx, "SELECT FROM blob WHERE n = ANY($1) ORDER BY digest FOR UPDATE", blobs); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM blob WHERE n = ANY($1)
		AND NOT EXISTS (SELECT FROM session_blob WHERE blob = n) AND NOT EXISTS (SELECT FROM upload WHERE blob = n)`, blobs)
	return err
}

// sweep removes the uploads of programs that died.
func (s *Store) sweep(ctx context.Context) error {
	return s.once(ctx, s.uploads, answerTime, func(ctx context.Context, tx pgx.Tx) error {
		blobs, err := numbers(ctx, tx, "DELETE FROM upload WHERE made < now() - interval '1 day' RETURNING blob")
		if err != nil {
			return err
		}
		return collect(ctx, tx, blobs)
	})
}

// RemoveBlobs removes blobs of a session.
func (s *Store) RemoveBlobs(ctx context.Context, id string, digests ...store.Digest) error {
	var raw [][]byte
	for _, d := range digests {
		if r := rawDigest(d); r != nil {
			raw = append(raw, r)
		}
	}
	return s.transact(ctx, "remove", id, func(ctx context.Context, tx pgx.Tx) error {
		h, err := headOf(ctx, tx, id, forChange)
		if err == nil {
			err = s.fenced(ctx, tx, id, h.n)
		}
		if err != nil {
			return err
		}
		blobs, err := numbers(ctx, tx,
			"DELETE FROM session_blob USING blob WHERE session = $1 AND blob.n = blob AND digest = ANY($2) RETURNING blob.n", h.n, raw)
		if err != nil {
			return err
		}
		return collect(ctx, tx, blobs)
	})
}

// Blob returns the content of a blob. It is verified before, and read from a copy: the reader needs no
// connection.
func (s *Store) Blob(ctx context.Context, id string, d store.Digest) (r io.ReadCloser, err error) {
	err = s.retry(ctx, uploadTime, "blob", id, func(ctx context.Context) (err error) {
		r, err = s.blob(ctx, id, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s *Store) blob(ctx context.Context, id string, d store.Digest) (_ io.ReadCloser, err error) {
	h, err := headOf(ctx, s.pool, id, unlocked)
	if err != nil {
		return nil, err
	}
	var n, size int64
	err = s.pool.QueryRow(ctx, "SELECT n, size FROM session_blob JOIN blob ON n = blob WHERE session = $1 AND digest = $2", h.n, rawDigest(d)).Scan(&n, &size)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: no blob %s", fs.ErrNotExist, d)
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	if size <= pieceSize {
		var buf bytes.Buffer
		if err := s.read(ctx, n, io.MultiWriter(&buf, sum)); err != nil {
			return nil, err
		}
		return io.NopCloser(&buf), verify(d, sum)
	}
	f, err := os.CreateTemp("", "agentenv-blob-")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.Remove(f.Name()), s.read(ctx, n, io.MultiWriter(f, sum)), verify(d, sum))
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// read writes the pieces of a blob to w.
func (s *Store) read(ctx context.Context, n int64, w io.Writer) error {
	rows, err := s.pool.Query(ctx, "SELECT content FROM piece WHERE blob = $1 ORDER BY i", n)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var piece []byte
		if err := rows.Scan(&piece); err != nil {
			return err
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return rows.Err()
}

// verify returns store.ErrCorrupt unless the sum is the digest.
func verify(d store.Digest, sum hash.Hash) error {
	if !bytes.Equal(sum.Sum(nil), rawDigest(d)) {
		return fmt.Errorf("%w: blob %s", store.ErrCorrupt, d)
	}
	return nil
}

// rawDigest returns a digest as stored; nil if d is invalid.
func rawDigest(d store.Digest) []byte {
	raw, err := hex.DecodeString(string(d))
	if err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != string(d) {
		return nil
	}
	return raw
}
