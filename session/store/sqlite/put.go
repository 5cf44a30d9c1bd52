package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"hash"
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
	// maxInline is the size up to which blobs are stored in the database, compressed, which is
	// faster than a file system for small blobs.
	maxInline = 64 << 10
	// maxPending is how many bytes are stored from memory in one transaction, and mostPending how
	// many blobs.
	maxPending  = 8 << 20
	mostPending = 1000
	// mostFiles is how many files are stored in one transaction. They are renamed within the
	// transaction, for which other programs wait.
	mostFiles = 100
	// workers is how many blobs are made ready at once: file systems sync several files together.
	workers = 16
)

// pendingBlob is a blob that was read but not stored yet.
type pendingBlob struct {
	digest  []byte
	content []byte // nil if it is a file
	tmp     string // the file
	size    int64  // of the file
	plain   int64  // size of the content if content or the file is compressed
	ready   bool   // to be stored: it is compressed, and the file is on the disk
	intact  bool   // the store had its file, with this content
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
			p.pending = append(p.pending, b) // discard removes its file
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		digests = append(digests, store.Digest(hex.EncodeToString(b.digest)))
		if p.size += len(b.content); b.tmp != "" || len(b.content) > maxInline {
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

// read reads a blob to its end: into memory, or into a file if it is large.
func (p *putting) read(r io.Reader) (b pendingBlob, err error) {
	p.buffer.Reset()
	n, err := p.buffer.ReadFrom(io.LimitReader(r, maxWhole+1))
	if err != nil {
		return b, err
	}
	if n <= maxWhole {
		sum := sha256.Sum256(p.buffer.Bytes())
		return pendingBlob{digest: sum[:], content: append([]byte{}, p.buffer.Bytes()...)}, nil
	}
	counted := &countingHash{Hash: sha256.New()}
	head := p.buffer.Bytes()
	if _, err := counted.Write(head); err != nil {
		return b, err
	}
	packed := false
	b.tmp, b.size, err = p.s.writeFile(func(f *os.File) (err error) {
		packed, err = p.s.coder.packStream(f, head, io.TeeReader(r, counted))
		return err
	})
	b.digest = counted.Sum(nil)
	if packed {
		b.plain = counted.n
	}
	return b, err
}

// countingHash counts the bytes of its content.
type countingHash struct {
	hash.Hash
	n int64
}

func (h *countingHash) Write(p []byte) (int, error) {
	n, err := h.Hash.Write(p)
	h.n += int64(n)
	return n, err
}

// writeFile makes a file in tmp/ with the content that write writes.
func (s *Store) writeFile(write func(*os.File) error) (name string, size int64, err error) {
	f, err := os.CreateTemp(filepath.Join(s.dir, tmpFolder), "blob-*")
	if err != nil {
		return "", 0, err
	}
	err = write(f)
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err != nil {
		return "", 0, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), info.Size(), nil
}

// makeReady compresses a blob, and makes its file durable if it has one.
func (s *Store) makeReady(b *pendingBlob) (err error) {
	if b.content != nil {
		content, packed := s.coder.pack(b.content)
		if packed {
			b.plain = int64(len(b.content))
		}
		if b.content = content; len(content) > maxInline {
			b.content = nil
			b.tmp, b.size, err = s.writeFile(func(f *os.File) error {
				_, err := f.Write(content)
				return err
			})
		}
	}
	if err == nil && b.tmp != "" {
		err = syncFile(b.tmp)
	}
	b.ready = err == nil
	return err
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
		err = p.makeReady(known)
	}
	if err != nil {
		return err
	}
	// Files are renamed within the transaction, as removeBlobs removes them within one, so that no
	// session removes a file that another session has just added.
	err = p.s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) error {
		h, err := headOf(ctx, tx, p.id)
		if err == nil {
			known, err = p.known(ctx, tx)
		}
		if err == nil {
			err = p.makeReady(known) // what another session has removed meanwhile
		}
		if err == nil {
			err = p.rename()
		}
		if err == nil {
			err = p.insert(ctx, tx)
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

// known returns how the database has the pending blobs.
func (p *putting) known(ctx context.Context, q querier) (_ map[string]kept, err error) {
	rows, err := q.QueryContext(ctx,
		"SELECT digest, content IS NULL, plain FROM blob WHERE digest IN "+tuple(len(p.pending)), p.digests()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	known := make(map[string]kept)
	for rows.Next() {
		var digest []byte
		var k kept
		err := rows.Scan(raw(&digest), integer(&k.file), integer(&k.plain))
		if err != nil && !errors.Is(err, errColumn) {
			return nil, err
		}
		if err == nil { // else it is damaged, and replaced
			known[string(digest)] = k
		}
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

// makeReady makes the blobs ready that are to be stored: those that the database does not know, and
// those in whose place a damaged file is.
func (p *putting) makeReady(known map[string]kept) error {
	var group errgroup.Group
	for first := range min(workers, len(p.pending)) {
		group.Go(func() error {
			for i := first; i < len(p.pending); i += workers {
				b := &p.pending[i]
				k, ok := known[string(b.digest)]
				if b.ready || ok && (k.file == 0 || b.intact && p.s.hasFile(b.digest)) {
					continue
				}
				if b.intact = ok && p.s.intact(b.digest, k.plain); b.intact {
					continue
				}
				if err := p.s.makeReady(b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// intact reports whether the file of a blob has its content.
func (s *Store) intact(digest []byte, plain int64) bool {
	f, err := s.openFile(store.Digest(hex.EncodeToString(digest)), plain)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, f)
	return errors.Join(err, f.Close()) == nil
}

// hasFile reports whether the file of a blob is there.
func (s *Store) hasFile(digest []byte) bool {
	_, err := os.Stat(s.file(digest))
	return err == nil
}

// rename gives the files their names, durably: a power failure loses neither a name nor a content.
func (p *putting) rename() error {
	folders := make(map[string]bool)
	for i := range p.pending {
		b := &p.pending[i]
		if !b.ready || b.tmp == "" {
			continue
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

// insert adds the blobs that are ready, or replaces damaged ones.
func (p *putting) insert(ctx context.Context, tx *sql.Tx) error {
	var args []any
	for _, b := range p.pending {
		if b.ready {
			args = append(args, b.digest, b.content, b.size, b.plain)
		}
	}
	if len(args) == 0 {
		return nil
	}
	rows := "(?, ?, ?, ?)" + strings.Repeat(", (?, ?, ?, ?)", len(args)/4-1)
	_, err := tx.ExecContext(ctx, "INSERT INTO blob (digest, content, size, plain) VALUES "+rows+
		" ON CONFLICT (digest) DO UPDATE SET content = excluded.content, size = excluded.size, plain = excluded.plain", args...)
	return err
}

// link adds the blobs to the session.
func (p *putting) link(ctx context.Context, tx *sql.Tx, h head) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO session_blob (session, blob, seq) "+
		"SELECT ?, n, ? FROM blob WHERE digest IN "+tuple(len(p.pending))+" ON CONFLICT DO NOTHING", p.digests(h.n, h.last)...)
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
