package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// largePipe is the buffer size of a pipe with sustained flow.
	largePipe = 1 << 20
	// sustained is how many bytes count as sustained flow.
	sustained = 256 << 10
	// maxLarge is how many such pipes one sandbox has at a time: the kernel counts their pages
	// against the user, and shrinks new pipes of that user when the pages run out.
	maxLarge = 4
	// copyBuffer is the size of buffers for copying.
	copyBuffer = 128 << 10
)

// output is the reading end of a stream. The zero value is at EOF.
type output struct {
	f    *os.File
	tty  *terminal
	grow *atomic.Int32 // how many pipes of the sandbox are large

	read  atomic.Int64
	mu    sync.Mutex
	large bool
	shut  bool
}

func (o *output) Read(p []byte) (int, error) {
	switch {
	case o.tty != nil:
		return o.tty.Read(p)
	case o.f == nil:
		return 0, io.EOF
	}
	n, err := o.f.Read(p)
	if o.read.Load() < sustained && o.read.Add(int64(n)) >= sustained {
		o.enlarge()
	}
	return n, err
}

// hurry makes Read stop waiting for more output. It reports whether that is possible.
func (o *output) hurry() bool { return o.f == nil || o.f.SetReadDeadline(time.Now()) == nil }

// WriteTo copies the stream in larger pieces than io.Copy does.
func (o *output) WriteTo(w io.Writer) (int64, error) {
	if o.f == nil && o.tty == nil {
		return 0, nil
	}
	return io.CopyBuffer(w, struct{ io.Reader }{o}, make([]byte, copyBuffer))
}

// enlarge gives the pipe a larger buffer, unless the sandbox has maxLarge such pipes.
func (o *output) enlarge() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shut || o.large {
		return
	}
	if o.grow.Add(1) > maxLarge {
		o.grow.Add(-1)
		return
	}
	o.large = true
	raw, err := o.f.SyscallConn()
	if err == nil {
		// If the kernel refuses, the pipe keeps its size.
		_ = raw.Control(func(fd uintptr) { _ = growPipe(int(fd), largePipe) })
	}
}

// Close breaks the pipe, or hangs up the terminal.
func (o *output) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shut {
		return nil
	}
	o.shut = true
	if o.large {
		o.grow.Add(-1)
	}
	switch {
	case o.tty != nil:
		o.tty.close()
	case o.f != nil:
		return o.f.Close()
	}
	return nil
}

// input is the writing end of standard input.
type input struct {
	backend string
	f       *os.File
	tty     *terminal
	over    atomic.Bool // the command has exited
}

func (i *input) Write(p []byte) (int, error) {
	var n int
	var err error
	switch {
	case i.tty != nil:
		n, err = i.tty.Write(p)
	case i.f == nil:
		err = fmt.Errorf("%w: the command was started without Stdin", os.ErrClosed)
	default:
		n, err = i.f.Write(p)
	}
	if err != nil {
		if i.over.Load() {
			err = fmt.Errorf("%w: %w", os.ErrProcessDone, unix.EPIPE)
		}
		err = &primitives.Error{Op: "stdin", Backend: i.backend, Err: unwrapPath(err)}
	}
	return n, err
}

// unwrapPath removes the os.PathError that os.File adds.
func unwrapPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func (i *input) Close() error {
	var err error
	switch {
	case i.tty != nil:
		err = i.tty.closeWrite()
	case i.f != nil:
		err = i.f.Close()
	}
	if err == nil || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return &primitives.Error{Op: "stdin", Backend: i.backend, Err: err}
}

// exited makes blocked and later writes fail: a child that the command left behind may hold the
// other end open.
func (i *input) exited() {
	i.over.Store(true)
	if i.f != nil {
		_ = i.f.Close()
	}
}

// terminal is this program's side of a pseudo-terminal.
type terminal struct {
	master *os.File

	writing   sync.Mutex // held by Write, and while EOF is typed
	lineBegun bool       // guarded by writing
	typing    sync.WaitGroup

	mu        sync.Mutex
	gone      bool // the leader has exited
	inputOver bool
	left      int // bytes that may still be read after that
}

// After the leader of a terminal has exited, its last output may still be in the kernel, and its
// background processes can hold the terminal open forever. So reading then ends after this time or
// size.
const (
	ttyDrainTime = 100 * time.Millisecond
	ttyDrainSize = 256 << 10
)

func (t *terminal) Read(p []byte) (int, error) {
	n, err := t.master.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = t.readRest(p)
	}
	if errors.Is(err, unix.EIO) { // the other side is closed
		err = io.EOF
	}
	return n, err
}

// readRest reads without waiting, up to t.left bytes.
func (t *terminal) readRest(p []byte) (int, error) {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p = p[:min(len(p), t.left)]
	n := 0
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), p) }); cerr != nil {
		return 0, cerr
	}
	if n <= 0 {
		if err == nil || errors.Is(err, unix.EAGAIN) {
			err = io.EOF
		}
		return 0, err
	}
	t.left -= n
	return n, nil
}

func (t *terminal) Write(p []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	over := t.inputOver || t.gone
	t.mu.Unlock()
	if over {
		return 0, os.ErrClosed
	}
	n, err := t.master.Write(p)
	if n > 0 {
		t.lineBegun = p[n-1] != '\n' && p[n-1] != '\r'
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = os.ErrClosed // the deadline means that the input is closed
	}
	return n, err
}

// closeWrite types the end-of-file character. If the terminal's queue is full, because no process
// reads, closeWrite types it later.
func (t *terminal) closeWrite() error {
	t.mu.Lock()
	if t.inputOver || t.gone {
		t.mu.Unlock()
		return nil
	}
	t.inputOver = true
	_ = t.master.SetWriteDeadline(time.Now()) // interrupts a blocked Write
	t.mu.Unlock()
	t.writing.Lock()
	defer t.writing.Unlock()
	raw, err := t.master.SyscallConn()
	if err != nil {
		return nil // closed already
	}
	var eof []byte
	var n int
	cerr := raw.Control(func(fd uintptr) {
		if eof = endOfFile(int(fd), t.lineBegun); len(eof) > 0 {
			n, err = unix.Write(int(fd), eof)
		}
	})
	switch {
	case cerr != nil || errors.Is(err, unix.EIO): // the other side is closed
		return nil
	case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
		return err
	}
	if eof = eof[max(n, 0):]; len(eof) > 0 {
		t.typeLater(eof)
	}
	return nil
}

// typeLater types keys when there is room, while the command runs.
func (t *terminal) typeLater(keys []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone && t.master.SetWriteDeadline(time.Time{}) == nil {
		t.typing.Go(func() { _, _ = t.master.Write(keys) })
	}
}

func (t *terminal) exited() {
	t.mu.Lock()
	t.gone, t.left = true, ttyDrainSize
	t.mu.Unlock()
	_ = t.master.SetWriteDeadline(time.Now())
	_ = t.master.SetReadDeadline(time.Now().Add(ttyDrainTime))
}

func (t *terminal) resize(size primitives.TerminalSize) error {
	return setSize(t.master, size)
}

func (t *terminal) close() {
	_ = t.master.Close()
	t.typing.Wait()
}
