package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"

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

// confirm runs do and sends an empty reply if do succeeds.
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

// download answers with the content of r. The reply is sent together with the first data.
func (op *operation) download(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	op.queue(appendHeader(nil, frameReply, 0))
	err = op.sendAll(r, op.claimPipe)
	if source, ok := errors.AsType[*sourceError](err); ok {
		return source.err
	}
	return nil // the host has disconnected
}

// upload reads the data of the host. If the host disconnects before the end, reading fails and
// the operation is cancelled.
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

// stopReading unblocks a Read that the sandbox no longer waits for.
func (op *operation) stopReading() { _ = op.SetReadDeadline(past()) }

func (s *server) write(ctx context.Context, op *operation) error {
	var req writeRequest
	if err := op.request(&req); err != nil {
		return err
	}
	defer op.stopReading()
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
	defer op.stopReading()
	up := op.upload()
	if err := primitives.Unpack(ctx, s.p, req.Path, up); err != nil {
		return err
	}
	// A tar stream has an end of its own. Data after it is ignored, but it must have arrived
	// completely.
	if _, err := io.Copy(io.Discard, up); err != nil {
		return err
	}
	return op.reply(&empty{})
}

// listChunk is roughly how many bytes of entries go into one message.
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
				return nil // the host has disconnected
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
			return nil // the host has disconnected; the sequence was never started and ends with ctx
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

// Small files of a batch are written in groups, while the next group arrives. Larger files are
// written alone, as a stream.
const (
	groupBytes = 256 << 10
	groupFiles = 64
	// maxFileHeader is the longest header of a file in a batch.
	maxFileHeader = 64 << 10
)

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

// seqWriter is a sandbox that writes the files of a batch as they arrive. When it takes the
// next file, it no longer uses the content of the one before.
type seqWriter interface {
	WriteFilesSeq(ctx context.Context, files iter.Seq[primitives.File]) ([]error, error)
}

// writeSeq is WriteFilesSeq for every sandbox.
func writeSeq(ctx context.Context, p primitives.EnvironmentPrimitive, files iter.Seq[primitives.File]) (errs []error, err error) {
	if w, ok := p.(seqWriter); ok {
		return w.WriteFilesSeq(ctx, files)
	}
	for f := range files {
		one, err := primitives.WriteFiles(ctx, p, []primitives.File{f})
		if err != nil {
			return errs, err
		}
		errs = append(errs, one...)
	}
	return errs, nil
}

var errBatchEnd = errors.New("end of the batch")

// batch writes files as they arrive, in their order.
type batch struct {
	s       *server
	op      *operation
	in      *bufio.Reader
	index   int // of the next file
	group   group
	spare   group    // being written, or memory for the next group
	writing *writing // nil if nothing is being written
}

// group holds small files, with their contents one after another.
type group struct {
	files    []primitives.File
	contents []byte
}

// writing is a running write of small files that follow each other.
type writing struct {
	first  int        // the index of the first
	files  int        // how many were handed over
	groups chan group // to write
	done   chan struct{}
	errs   []error // one for each file; err is for all; both are valid when done is closed
	err    error
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

// next reads one file.
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

// flush hands over the group to be written after the one before it.
func (b *batch) flush(ctx context.Context) error {
	if len(b.group.files) == 0 {
		return nil
	}
	if b.writing == nil {
		b.writing = &writing{first: b.index - len(b.group.files), groups: make(chan group), done: make(chan struct{})}
		go b.writing.run(ctx, b.s.p)
	}
	select {
	case b.writing.groups <- b.group:
		b.writing.files += len(b.group.files)
		// The receiver of a group has finished the one before.
		b.group, b.spare = b.spare, b.group
		b.group.files, b.group.contents = b.group.files[:0], b.group.contents[:0]
		return nil
	case <-b.writing.done:
		b.writing.files += len(b.group.files)
		return b.finish()
	}
}

func (w *writing) run(ctx context.Context, p primitives.EnvironmentPrimitive) {
	defer close(w.done)
	w.errs, w.err = writeSeq(ctx, p, func(yield func(primitives.File) bool) {
		for g := range w.groups {
			for i := range g.files {
				if !yield(g.files[i]) {
					return
				}
			}
		}
	})
}

// finish waits until all flushed groups have been written, and reports their errors.
func (b *batch) finish() error {
	w := b.writing
	if w == nil {
		return nil
	}
	b.writing = nil
	close(w.groups)
	<-w.done
	for i, err := range w.errs {
		if err := b.report(w.first+i, err); err != nil {
			return err
		}
	}
	if w.err == nil && len(w.errs) != w.files {
		return fmt.Errorf("%w: %d files of %d were taken", primitives.ErrUnavailable, len(w.errs), w.files)
	}
	return w.err
}

// report sends the host the error of a file that was not written.
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
