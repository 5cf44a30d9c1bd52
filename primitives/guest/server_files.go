package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

func (s *server) stat(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		info, err := s.p.Stat(ctx, req.Path)
		if err != nil {
			return err
		}
		return op.reply(&fileInfoReply{info})
	})
}

func (s *server) mkdir(ctx context.Context, op *operation) error {
	var req mkdirRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Mkdir(ctx, req.Path, req.Mode) })
}

func (s *server) remove(ctx context.Context, op *operation) error {
	var req removeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Remove(ctx, req.Path, req.Recursive) })
}

func (s *server) move(ctx context.Context, op *operation) error {
	var req moveRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.confirm(func() error { return s.p.Move(ctx, req.From, req.To) })
}

// confirm answers with nothing when do has succeeded.
func (op *operation) confirm(do func() error) error {
	return op.abandonable(func() error {
		if err := do(); err != nil {
			return err
		}
		return op.reply(&empty{})
	})
}

func (s *server) open(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		r, err := s.p.Open(ctx, req.Path)
		return op.download(r, err)
	})
}

func (s *server) pack(ctx context.Context, op *operation) error {
	var req packRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		r, err := primitives.Pack(ctx, s.p, req.Dir, req.Opts)
		return op.download(r, err)
	})
}

// download answers with the content of r. The reply travels with the first data.
func (op *operation) download(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	op.queue(appendHeader(nil, frameReply, 0))
	return op.content(r)
}

// content sends what is left of r, and closes it.
func (op *operation) content(r io.ReadCloser) error {
	defer func() { _ = r.Close() }() // what was read is what counts
	err := op.sendAll(r, op.claimPipe)
	if source, ok := errors.AsType[*sourceError](err); ok {
		return source.err
	}
	return nil // the host has gone
}

// upload is the data of the host. It fails if the host goes before the end, and
// the operation is then cancelled.
type upload struct {
	op   *operation
	data dataReader
}

func (op *operation) upload() *upload {
	u := &upload{op: op}
	u.data = dataReader{f: op.framer, onError: func(w *wireError) error { return fromWire(w, "") }}
	return u
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.data.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // dataReader ends with io.EOF itself
		u.op.cancel()
	}
	return n, err
}

func (s *server) write(ctx context.Context, op *operation) error {
	var req writeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	if err := s.p.WriteFile(ctx, req.Path, op.upload(), req.Opts); err != nil {
		return err
	}
	return op.reply(&empty{})
}

func (s *server) unpack(ctx context.Context, op *operation) error {
	var req pathRequest
	if err := op.request(&req); err != nil {
		return err
	}
	up := op.upload()
	if err := primitives.Unpack(ctx, s.p, req.Path, up); err != nil {
		return err
	}
	// A tar stream has an end of its own; what follows it is not needed, but
	// it must have been whole.
	if _, err := io.Copy(io.Discard, up); err != nil {
		return err
	}
	return op.reply(&empty{})
}

// Groups of a batch: small files are handed over together, so that the engine
// can be quick about them, and while the next ones arrive; larger ones alone and as
// a stream.
const (
	groupBytes = 256 << 10
	groupFiles = 64
	// maxFileHeader is the longest header of a file in a batch.
	maxFileHeader = 64 << 10
)

func appendLength(dst []byte, n int) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }

func (s *server) writeFiles(ctx context.Context, op *operation) error {
	b := &batch{s: s, op: op, in: bufio.NewReaderSize(op.upload(), maxFrame)}
	err := b.all(ctx)
	if werr := b.finish(); err == nil {
		err = werr
	}
	if err != nil {
		return err
	}
	return op.reply(&empty{})
}

var errBatchEnd = errors.New("end of the batch")

// batch writes files as they arrive, in their order.
type batch struct {
	s       *server
	op      *operation
	in      *bufio.Reader
	index   int // of the next file
	group   group
	spare   group // memory for the next one
	writing chan error
}

// group are small files and their contents, one after another.
type group struct {
	first    int // the index of the first
	files    []primitives.File
	contents []byte
	errs     []error // what came of writing them
}

func (b *batch) all(ctx context.Context) error {
	for {
		err := b.next(ctx)
		if errors.Is(err, errBatchEnd) {
			return b.flush(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// next takes one file.
func (b *batch) next(ctx context.Context) error {
	h, err := b.header()
	if err != nil {
		return err
	}
	if h.Size > groupBytes {
		return b.large(ctx, &h)
	}
	if len(b.group.contents)+int(h.Size) > groupBytes || len(b.group.files) == groupFiles {
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	if b.group.contents == nil {
		b.group = group{files: make([]primitives.File, 0, groupFiles), contents: make([]byte, 0, groupBytes)}
	}
	start := len(b.group.contents)
	b.group.contents = b.group.contents[:start+int(h.Size)]
	content := b.group.contents[start:]
	if _, err := io.ReadFull(b.in, content); err != nil {
		return streamError(err)
	}
	b.group.files = append(b.group.files, primitives.File{Path: h.Path, Content: content, Mode: h.Mode})
	b.index++
	return nil
}

// large writes a file while it arrives.
func (b *batch) large(ctx context.Context, h *fileHeader) error {
	err := b.flush(ctx)
	if err == nil {
		err = b.finish()
	}
	if err != nil {
		return err
	}
	content := &io.LimitedReader{R: b.in, N: h.Size}
	err = b.s.p.WriteFile(ctx, h.Path, &exactReader{content}, primitives.WriteOptions{Mode: h.Mode})
	if _, derr := io.Copy(io.Discard, content); derr != nil {
		return derr
	}
	b.index++
	return b.report(b.index-1, err)
}

func (b *batch) header() (fileHeader, error) {
	var h fileHeader
	var length [4]byte
	if _, err := io.ReadFull(b.in, length[:1]); err != nil {
		if err == io.EOF { // nothing of a file was read
			return h, errBatchEnd
		}
		return h, err
	}
	if _, err := io.ReadFull(b.in, length[1:]); err != nil {
		return h, streamError(err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFileHeader {
		return h, invalid(fmt.Errorf("%w: the header of a file has %d bytes", errProtocol, n))
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(b.in, buf); err != nil {
		return h, streamError(err)
	}
	if err := decode(buf, &h); err != nil || h.Size < 0 {
		return h, invalid(errEncoding)
	}
	return h, nil
}

// flush has the group written when the one before it has been.
func (b *batch) flush(ctx context.Context) error {
	if err := b.finish(); err != nil || len(b.group.files) == 0 {
		return err
	}
	b.group, b.spare = b.spare, b.group
	b.group.first, b.group.files, b.group.contents = 0, b.group.files[:0], b.group.contents[:0]
	b.spare.first = b.index - len(b.spare.files)
	b.writing = make(chan error, 1)
	go func() {
		var err error
		b.spare.errs, err = primitives.WriteFiles(ctx, b.s.p, b.spare.files)
		b.writing <- err
	}()
	return nil
}

// finish waits until the group that is being written has been.
func (b *batch) finish() error {
	if b.writing == nil {
		return nil
	}
	err := <-b.writing
	b.writing = nil
	if err != nil {
		return err
	}
	for i, err := range b.spare.errs {
		if err := b.report(b.spare.first+i, err); err != nil {
			return err
		}
	}
	return nil
}

// report tells the host of a file that was not written.
func (b *batch) report(index int, err error) error {
	if err == nil {
		return nil
	}
	return b.op.sendMessage(frameItem, &fileFailure{Index: index, Err: *toWire(err)})
}

// exactReader reads a file of a batch; data that ends early is an error.
type exactReader struct{ *io.LimitedReader }

func (r *exactReader) Read(p []byte) (int, error) {
	n, err := r.LimitedReader.Read(p)
	if err == io.EOF && r.N > 0 {
		err = errEnded
	}
	return n, err
}

// listChunk is about how many bytes of entries go into one message.
const listChunk = 32 << 10

func (s *server) list(ctx context.Context, op *operation) error {
	var req listRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		infos, err := s.p.List(ctx, req.Dir, req.Opts)
		for len(infos) > 0 {
			n, size := 0, 0
			for n < len(infos) && size < listChunk {
				size += 64 + len(infos[n].Path) + len(infos[n].Target)
				n++
			}
			op.queue(appendFrame(nil, frameItem, encode(&listItem{infos[:n]})))
			infos = infos[n:]
			if len(infos) > 0 && op.send(nil) != nil {
				return nil // the host has gone
			}
		}
		if err != nil {
			return err
		}
		_ = op.send(appendHeader(nil, frameEnd, 0))
		return nil
	})
}

func (s *server) watch(ctx context.Context, op *operation) error {
	var req watchRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return op.abandonable(func() error {
		events, err := s.p.Watch(ctx, req.Dir, req.Opts)
		if err != nil {
			return err
		}
		if err := op.sendMessage(frameReply, &empty{}); err != nil {
			return nil //nolint:nilerr // the host has gone; the sequence was never begun and ends with ctx
		}
		for event, err := range events {
			if err != nil {
				return err
			}
			if len(event.Content) > maxEventContent {
				event.Content, event.Omitted = nil, primitives.OmittedTooLarge
			}
			if op.sendMessage(frameItem, &eventFrame{event}) != nil {
				return nil
			}
		}
		_ = op.send(appendHeader(nil, frameEnd, 0))
		return nil
	})
}
