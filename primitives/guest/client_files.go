package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxFailures is how many bytes of errors of single files WriteFiles accepts from a guest.
const maxFailures = 16 << 20

// Stat describes the file at a path.
func (c *Sandbox) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	var reply fileInfoReply
	err := c.ask(ctx, "stat", name, opStat, &pathRequest{name}, &reply)
	return reply.Info, err
}

// Mkdir creates a directory and its missing parents.
func (c *Sandbox) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	return c.ask(ctx, "mkdir", name, opMkdir, &mkdirRequest{name, mode}, &empty{})
}

// Remove removes a file, a link or a directory.
func (c *Sandbox) Remove(ctx context.Context, name string, recursive bool) error {
	return c.ask(ctx, "remove", name, opRemove, &removeRequest{name, recursive}, &empty{})
}

// Move renames a file, link or directory.
func (c *Sandbox) Move(ctx context.Context, from, to string) error {
	return c.ask(ctx, "move", from, opMove, &moveRequest{from, to}, &empty{})
}

// Open reads a file as a stream. ctx covers the whole stream.
func (c *Sandbox) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return c.download(ctx, "open", name, opOpen, &pathRequest{name})
}

// Pack returns a directory as a tar stream. ctx covers the whole stream.
func (c *Sandbox) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	return c.download(ctx, "pack", dir, opPack, &packRequest{dir, opts})
}

func (c *Sandbox) download(ctx context.Context, op, target string, code opcode, req message) (io.ReadCloser, error) {
	b := callParams{op: op, target: target, request: requestFrame(code, req)}
	mine := c.bulkPipe(true, func(theirs *os.File) error { b.files = []*os.File{theirs}; return nil })
	k, err := c.begin(ctx, b)
	if err != nil {
		if mine != nil {
			_ = mine.Close() // nothing came through it
		}
		return nil, err
	}
	if mine != nil {
		k.setPipe(mine)
	}
	if err := k.reply(&empty{}); err != nil {
		k.end()
		return nil, err
	}
	return &download{call: k, data: dataReader{f: k.framer, onError: k.reported}}, nil
}

// bulkPipe creates a pipe for bulk data and passes the guest's end to pass. It returns nil if
// the guest does not support pipes or the pipe cannot be used; then the data goes over the
// stream.
func (c *Sandbox) bulkPipe(reads bool, pass func(theirs *os.File) error) *os.File {
	if c.mux.guard.pass == nil {
		return nil
	}
	mine, theirs, err := newPipe(reads)
	if err != nil {
		return nil
	}
	if err := pass(theirs); err != nil {
		_ = mine.Close() // nothing went through it
		return nil
	}
	return mine
}

// WriteTo reads the content in larger pieces than io.Copy would.
func (d *download) WriteTo(w io.Writer) (int64, error) { return copyAll(w, struct{ io.Reader }{d}) }

// reported returns the caller's error for an error of the guest.
func (k *call) reported(w *wireError) error {
	return k.c.fail(k.op, k.target, k.c.remote(w))
}

// download is the content of a file or a directory.
type download struct {
	*call
	data   dataReader
	closed atomic.Bool
}

// Read reads the content to its end.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.data.Read(p)
	if err == nil || err == io.EOF { //nolint:errorlint // dataReader ends with io.EOF itself
		return n, err
	}
	if d.closed.Load() {
		return n, d.c.fail(d.op, d.target, fs.ErrClosed)
	}
	if _, ok := errors.AsType[*primitives.Error](err); !ok {
		err = d.failed(err)
	}
	return n, err
}

// Close releases the content, whether it was read or not.
func (d *download) Close() error {
	d.closed.Store(true)
	d.end()
	_ = d.SetReadDeadline(time.Now()) // unblocks a Read in progress
	return nil
}

// WriteFile writes what it reads from r.
func (c *Sandbox) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return c.upload(ctx, "write", name, requestFrame(opWrite, &writeRequest{name, opts}), r, nil)
}

// Unpack writes a tar stream below dir.
func (c *Sandbox) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return c.upload(ctx, "unpack", dir, requestFrame(opUnpack, &pathRequest{dir}), r, nil)
}

// upload sends a request and then the content of r. The guest may answer before it has
// everything. onItem handles the items that precede the answer.
//
// A goroutine reads r. upload does not wait for it while r blocks, because only the caller can
// end r.
func (c *Sandbox) upload(ctx context.Context, op, target string, request []byte, r io.Reader, onItem func([]byte) error) error {
	k, err := c.begin(ctx, callParams{op: op, target: target, request: request, hold: true})
	if err != nil {
		return err
	}
	defer k.end()
	ended := c.registerUpload(k)
	sent := make(chan error, 1)
	go func() {
		err := k.sendAll(r, func() *os.File {
			return c.bulkPipe(false, func(theirs *os.File) error { return k.session.keep(k.StreamID(), []*os.File{theirs}) })
		})
		sent <- err
		if err != nil {
			_ = k.halfClose() // the guest never accepts data without an end frame
		}
	}()
	err = k.uploaded(onItem)
	if why := ended(); err != nil && why != nil {
		return c.fail(op, target, why) // not an error of the reader or the guest
	}
	// An error of the source is the cause. The guest only reports that data was cut off.
	select {
	case sendErr := <-sent:
		if source, ok := errors.AsType[*sourceError](sendErr); ok {
			return c.fail(op, target, source.err)
		}
	default:
	}
	return err
}

// uploaded waits for the answer to an upload.
func (k *call) uploaded(onItem func([]byte) error) error {
	for {
		kind, payload, err := k.readMessage(maxReply)
		switch {
		case err != nil:
			return k.failed(err)
		case kind == frameItem && onItem != nil:
			if err = onItem(payload); errors.Is(err, primitives.ErrLimit) {
				return err
			} else if err != nil {
				return k.failed(err)
			}
		case kind == frameError:
			err = k.answered(payload)
			if cause := k.ctx.Err(); cause != nil && isAny(err, io.ErrUnexpectedEOF, context.Canceled) {
				return k.c.fail(k.op, k.target, cause) // the cancellation cut off the data
			}
			return err
		case kind != frameReply || len(payload) > 0:
			return k.failed(unexpected(kind))
		default:
			return nil
		}
	}
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// WriteFiles writes many files in one round trip.
func (c *Sandbox) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	errs := make([]error, len(files))
	request := requestFrame(opWriteFiles, &empty{})
	total := 0
	err := c.upload(ctx, "write files", "", request, &batchReader{files: files}, func(payload []byte) error {
		if total += len(payload); total > maxFailures {
			return c.fail("write files", "", fmt.Errorf("%w: the files' errors are longer than %d MiB; write fewer files at once", primitives.ErrLimit, maxFailures>>20))
		}
		var f fileFailure
		if err := decode(payload, &f); err != nil || f.Index < 0 || f.Index >= len(files) {
			return fmt.Errorf("%w: a wrong result of a batch", errProtocol)
		}
		errs[f.Index] = c.fail("write", files[f.Index].Path, c.remote(&f.Err))
		return nil
	})
	return errs, err
}

// batchReader reads a batch of files as bytes: for each file the length of its header, the
// header, and the content.
type batchReader struct {
	files []primitives.File
	parts [2][]byte // the unread rest of the current header and content
}

func (b *batchReader) Read(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		switch {
		case len(b.parts[0]) > 0:
			n := copy(p[total:], b.parts[0])
			total, b.parts[0] = total+n, b.parts[0][n:]
		case len(b.parts[1]) > 0:
			n := copy(p[total:], b.parts[1])
			total, b.parts[1] = total+n, b.parts[1][n:]
		case len(b.files) == 0:
			if total == 0 {
				return 0, io.EOF
			}
			return total, nil
		default:
			f := &b.files[0]
			header := encode(&fileHeader{Path: f.Path, Mode: f.Mode, Size: int64(len(f.Content))})
			b.parts = [2][]byte{append(appendLength(nil, len(header)), header...), f.Content}
			b.files = b.files[1:]
		}
	}
	return total, nil
}

// List describes the files below a directory.
func (c *Sandbox) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	k, err := c.start(ctx, "list", dir, opList, &listRequest{dir, opts})
	if err != nil {
		return nil, err
	}
	defer k.end()
	list := primitives.Listing{Limit: opts.Limit}
	for {
		kind, payload, err := k.readMessage(maxReply)
		switch {
		case err != nil:
			return list.Infos, k.failed(err)
		case kind == frameEnd:
			return list.Infos, nil
		case kind == frameError:
			return list.Infos, k.answered(payload)
		case kind != frameItem:
			return list.Infos, k.failed(unexpected(kind))
		}
		var item listItem
		if err := decode(payload, &item); err != nil {
			return list.Infos, k.failed(fmt.Errorf("%w: %w", errProtocol, err))
		}
		for _, info := range item.Infos {
			if err := list.Add(info); err != nil {
				return list.Infos, c.fail("list", dir, err)
			}
		}
	}
}

// Watch reports changes below dir.
func (c *Sandbox) Watch(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
	k, err := c.start(ctx, "watch", dir, opWatch, &watchRequest{dir, opts})
	if err != nil {
		return nil, err
	}
	if err := k.reply(&empty{}); err != nil {
		k.end()
		return nil, err
	}
	limit := int(min(max(opts.MaxContent, 0), maxEventContent)) + maxReply
	return func(yield func(primitives.WatchEvent, error) bool) {
		defer k.end()
		for {
			var event eventFrame
			err := k.event(limit, &event)
			if ctx.Err() != nil {
				return
			}
			if !yield(event.Event, err) || err != nil {
				return
			}
		}
	}, nil
}

// event reads the next event of a watch. Only its context ends a watch regularly: any other end
// means that the guest is ending.
func (k *call) event(limit int, event *eventFrame) error {
	kind, payload, err := k.readMessage(limit)
	switch {
	case err != nil:
		return k.failed(err)
	case kind == frameEnd:
		return k.failed(errEnded)
	case kind == frameError:
		return k.answered(payload)
	case kind != frameItem:
		return k.failed(unexpected(kind))
	}
	if err := decode(payload, event); err != nil {
		return k.failed(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return nil
}
