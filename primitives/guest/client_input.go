package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/agentenv-dev/agentenv/primitives"
)

// input is a command's standard input. The first Write or Close opens the stream.
type input struct {
	p       *process
	enabled bool

	writing sync.Mutex // held by Write and Close
	ended   bool       // guarded by writing: the end is sent after the rest of an interrupted Write

	mu       sync.Mutex
	f        *framer
	err      error // the guest's error, or fs.ErrClosed
	synced   chan struct{}
	closed   bool
	released bool // no write follows
}

// Write sends input. It returns when the guest's window has taken it, not when the command has
// read it; a later Write may report the error of an earlier one. After the command has exited,
// Write waits until the guest has handled the input. If the input is closed while Write waits,
// Write returns how many bytes the command will get.
func (in *input) Write(b []byte) (int, error) {
	in.writing.Lock()
	defer in.writing.Unlock()
	f, err := in.open()
	if err != nil {
		return 0, in.fail(err)
	}
	total := 0
	for total < len(b) {
		part := b[total:min(len(b), total+maxFrame)]
		left, err := f.sendPart(appendFrame(make([]byte, 0, frameHeader+len(part)), frameData, part))
		if err != nil {
			if in.finish(f, appendHeader(left, frameEnd, 0), err) {
				in.ended = true
				return total + len(part), in.fail(fs.ErrClosed)
			}
			return total, in.fail(err)
		}
		total += len(part)
	}
	if in.p.hasExited() {
		if err := in.sync(f); err != nil {
			return 0, in.fail(err)
		}
	}
	return total, nil
}

// sync waits until the guest has written all input sent before.
func (in *input) sync(f *framer) error {
	synced := make(chan struct{})
	in.mu.Lock()
	in.synced = synced
	err := in.err
	in.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.sendMessage(frameSync, &empty{}); err != nil {
		return err
	}
	<-synced
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// open returns the stream, or an error if the input is closed.
func (in *input) open() (*framer, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case !in.enabled:
		return nil, fmt.Errorf("%w: the command was started without Stdin", fs.ErrClosed)
	case in.closed:
		return nil, fs.ErrClosed
	}
	return in.stream()
}

// stream attaches on the first call. The caller holds in.mu.
func (in *input) stream() (*framer, error) {
	switch {
	case in.released:
		return nil, fs.ErrClosed
	case in.err != nil || in.f != nil:
		return in.f, in.err
	}
	f, err := in.p.attach(chanStdin)
	if err != nil {
		return nil, err
	}
	in.f = f
	go in.receive(f)
	return f, nil
}

// receive notices when the command no longer takes input. It returns when the stream ends.
func (in *input) receive(f *framer) {
	for {
		kind, payload, err := f.readMessage(maxReply)
		if err == nil && kind == frameSync {
			in.confirm(nil)
			continue
		}
		switch {
		case err != nil:
			err = in.p.c.broken(err)
			if in.p.hasExited() && in.p.c.Err() == nil {
				err = fmt.Errorf("%w: the command has exited", fs.ErrClosed)
			}
		case kind == frameError:
			var w wireError
			if derr := decode(payload, &w); derr != nil {
				err = in.p.c.broken(fmt.Errorf("%w: %w", errProtocol, derr))
			} else {
				err = in.p.c.remote(&w)
			}
		default:
			err = in.p.c.broken(unexpected(kind))
		}
		in.confirm(err)
		_ = f.SetWriteDeadline(time.Now()) // unblocks a Write that waits for the window
		return
	}
}

// confirm ends a sync. If err is not nil, all later writes fail with it.
func (in *input) confirm(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err != nil {
		in.err = err
	}
	if in.synced != nil && (err != nil || in.synced != nil) {
		close(in.synced)
		in.synced = nil
	}
}

func (in *input) fail(err error) error {
	in.mu.Lock()
	switch {
	case in.err != nil:
		err = in.err
	case in.closed && errors.Is(err, yamux.ErrTimeout) && in.p.c.Err() == nil:
		err = fs.ErrClosed
	}
	in.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) || !isKnown(err) {
		err = in.p.c.broken(err)
	}
	return in.p.c.fail("write", in.p.target, err)
}

// isKnown reports whether an error already says what happened.
func isKnown(err error) bool {
	if _, ok := errors.AsType[*primitives.Error](err); ok {
		return true
	}
	_, remote := errors.AsType[*remoteError](err)
	return remote || errors.Is(err, fs.ErrClosed) || errors.Is(err, primitives.ErrUnavailable) ||
		errors.Is(err, primitives.ErrTerminated) || errors.Is(err, primitives.ErrLimit)
}

// Close ends the input. It does not wait until the command has read what was written before.
func (in *input) Close() error {
	in.mu.Lock()
	again := in.closed || !in.enabled
	in.closed = true
	if in.f != nil && !again {
		_ = in.f.SetWriteDeadline(past()) // unblocks a Write that waits for the window
	}
	in.mu.Unlock()
	if again {
		return nil
	}
	in.writing.Lock()
	defer in.writing.Unlock()
	if in.ended {
		return nil
	}
	in.mu.Lock()
	f, err := in.stream()
	in.mu.Unlock()
	if err == nil {
		var left []byte
		if left, err = f.sendPart(appendHeader(nil, frameEnd, 0)); err != nil && in.finish(f, left, err) {
			return nil
		}
	}
	if err != nil && in.p.c.Err() != nil {
		return in.fail(err)
	}
	return nil // a command that has exited needs no end of input
}

// finish sends the frames that did not fit into the window when the input was closed, in the
// background. why is the error of the interrupted write. finish reports whether it does.
func (in *input) finish(f *framer, frames []byte, why error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed || in.released || in.err != nil || !errors.Is(why, yamux.ErrTimeout) || in.p.c.Err() != nil {
		return false
	}
	_ = f.SetWriteDeadline(time.Time{})
	go func() { _ = f.send(frames) }() // ends with the stream
	return true
}

// release closes the stream.
func (in *input) release() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed, in.released = true, true
	if in.f != nil {
		_ = in.f.Close()
		_ = in.f.SetReadDeadline(time.Now())
		_ = in.f.SetWriteDeadline(time.Now())
	}
}
