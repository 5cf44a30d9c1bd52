package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// maxInline is the size up to which blobs are stored in the database, which is faster than
	// a file system for small blobs.
	maxInline = 64 << 10
	// maxPending is how many bytes of small blobs are stored in one transaction, and mostPending
	// how many blobs.
	maxPending  = 4 << 20
	mostPending = 1000
	// mostFiles is how many large blobs are stored in one transaction. Their files are renamed
	// within the transaction, for which other programs wait.
	mostFiles = 100
	// syncs is how many files are synced at once, as file systems write several together.
	syncs = 16
)

// pendingBlob is a blob that was read but not stored yet.
type pendingBlob struct {
	digest  []byte
	content []byte // nil if it is a file
	tmp     string // the file
	size    int64  // of the file
	synced  bool   // the file is on the disk
}

// putting is a call of PutBlobs, with the blobs that it stores in the next transaction.
type putting struct {
	s       *Store
	id      string
	pending []pendingBlob
	size    int // of the contents in memory
	files   int // among the blobs
	buffer  bytes.Buffer
}

// PutBlobs stores contents for a session.
func (s *Store) PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]store.Digest, error) {
	if _, err := headOf(ctx, s.r, id); err != nil {
		return nil, s.failed(ctx, "put", id, err)
	}
	p := &putting{s: s, id: id}
	digests, err := p.all(ctx, contents)
	if err = errors.Join(err, p.discard()); err != nil {
		return nil, s.failure("put", id, err)
	}
	return digests, nil
}

func (p *putting) all(ctx context.Context, contents iter.Seq2[io.Reader, error]) (digests []store.Digest, err error) {
	for r, err := range contents {
		var b pendingBlob
		if err == nil {
			b, err = p.read(r)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, errors.Join(err, b.discard())
		}
		p.pending = append(p.pending, b)
		digests = append(digests, store.Digest(hex.EncodeToString(b.digest)))
		if p.size += len(b.content); b.tmp != "" {
			p.files++
		}
		if p.size >= maxPending || len(p.pending) >= mostPending || p.files >= mostFiles {
			if err := p.flush(ctx); err != nil {
				return nil, err
			}
		}
	}
	return digests, p.flush(ctx)
}

// read reads a blob to its end, into a file if it is large.
func (p *putting) read(r io.Reader) (pendingBlob, error) {
	p.buffer.Reset()
	n, err := p.buffer.ReadFrom(io.LimitReader(r, maxInline+1))
	if err != nil {
		return pendingBlob{}, err
	}
	if n <= maxInline {
		sum := sha256.Sum256(p.buffer.Bytes())
		return pendingBlob{digest: sum[:], content: append([]byte{}, p.buffer.Bytes()...)}, nil
	}
	f, err := os.CreateTemp(filepath.Join(p.s.dir, tmpFolder), "blob-*")
	if err != nil {
		return pendingBlob{}, err
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, sum), io.MultiReader(&p.buffer, r))
	b := pendingBlob{digest: sum.Sum(nil), tmp: f.Name(), size: size}
	return b, errors.Join(err, f.Close())
}

// discard removes the file of a blob that was not stored.
func (b *pendingBlob) discard() error {
	if b.tmp == "" {
		return nil
	}
	return unlessGone(os.Remove(b.tmp))
}

func (p *putting) discard() error {
	var errs []error
	for _, b := range p.pending {
		errs = append(errs, b.discard())
	}
	return errors.Join(errs...)
}

// flush stores the pending blobs.
func (p *putting) flush(ctx context.Context) error {
	if len(p.pending) == 0 {
		return ctx.Err()
	}
	known, err := p.known(ctx, p.s.r)
	if err == nil {
		err = p.sync(known)
	}
	if err != nil {
		return err
	}
	// Files are renamed within the transaction, as removeBlobs removes them within one, so that no
	// session removes a file that another session has just added.
	err = p.s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) error {
		h, err := headOf(ctx, tx, p.id)
		if err == nil {
			known, err = p.known(ctx, tx) // now
		}
		if err == nil {
			err = p.rename(known)
		}
		if err == nil {
			err = p.insert(ctx, tx, known)
		}
		if err == nil {
			err = p.link(ctx, tx, h)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = p.discard()
	p.pending, p.size, p.files = p.pending[:0], 0, 0
	return err
}

// known returns the digests of the pending blobs that the database has.
func (p *putting) known(ctx context.Context, q querier) (_ map[string]bool, err error) {
	rows, err := q.QueryContext(ctx, "SELECT digest FROM blob WHERE digest IN "+tuple(len(p.pending)), p.digests()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	known := make(map[string]bool)
	for rows.Next() {
		var digest []byte
		if err := rows.Scan(raw(&digest)); err != nil {
			return nil, err
		}
		known[string(digest)] = true
	}
	return known, rows.Err()
}

// digests returns the digests of the pending blobs after some other arguments of a statement.
func (p *putting) digests(args ...any) []any {
	for _, b := range p.pending {
		args = append(args, b.digest)
	}
	return args
}

// tuple returns "(?, ?, ?)" with n parameters.
func tuple(n int) string { return "(" + strings.Repeat("?, ", n-1) + "?)" }

// sync makes the files durable that are to be stored: those that the database does not know, and
// those in whose place a damaged file is.
func (p *putting) sync(known map[string]bool) error {
	var group errgroup.Group
	group.SetLimit(syncs)
	for i := range p.pending {
		b := &p.pending[i]
		if b.tmp == "" || b.synced {
			continue
		}
		group.Go(func() error {
			if known[string(b.digest)] && p.s.intact(b.digest) {
				return nil
			}
			b.synced = true
			return syncFile(b.tmp)
		})
	}
	return group.Wait()
}

// intact reports whether the file of a blob has its content.
func (s *Store) intact(digest []byte) bool {
	f, err := s.openFile(store.Digest(hex.EncodeToString(digest)))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, f)
	return errors.Join(err, f.Close()) == nil
}

// rename gives the files their names, durably: a power failure loses neither a name nor a content.
func (p *putting) rename(known map[string]bool) error {
	folders := make(map[string]bool)
	for i := range p.pending {
		b := &p.pending[i]
		if b.tmp == "" || !b.synced && known[string(b.digest)] {
			continue
		}
		if !b.synced { // another session has removed the blob meanwhile
			if err := syncFile(b.tmp); err != nil {
				return err
			}
		}
		name := p.s.file(b.digest)
		folder := filepath.Dir(name)
		err := os.Mkdir(folder, 0o700)
		if err == nil {
			folders[filepath.Dir(folder)] = true
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Rename(b.tmp, name); err != nil {
			return err
		}
		b.tmp = ""
		folders[folder] = true
	}
	for folder := range folders {
		if err := syncFile(folder); err != nil {
			return err
		}
	}
	return nil
}

// insert adds the blobs that the database does not know.
func (p *putting) insert(ctx context.Context, tx *sql.Tx, known map[string]bool) error {
	var args []any
	for _, b := range p.pending {
		if !known[string(b.digest)] {
			args = append(args, b.digest, b.content, b.size)
			known[string(b.digest)] = true // for one that comes twice
		}
	}
	if len(args) == 0 {
		return nil
	}
	rows := strings.Repeat("(?, ?, ?), ", len(args)/3)
	_, err := tx.ExecContext(ctx, "INSERT INTO blob (digest, content, size) VALUES "+strings.TrimSuffix(rows, ", "), args...)
	return err
}

// link adds the blobs to the session.
func (p *putting) link(ctx context.Context, tx *sql.Tx, h head) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO session_blob (session, blob, seq) SELECT ?, n, ? FROM blob WHERE digest IN "+tuple(len(p.pending))+
		" ON CONFLICT DO NOTHING", p.digests(h.n, h.last)...)
	return err
}

// syncFile makes the content of a file, or the names in a folder, durable.
func syncFile(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
