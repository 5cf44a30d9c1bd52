package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// stream is a command's standard output or error.
type stream interface {
	io.ReadCloser
	cut()     // the guest sends no more
	release() // the process was closed
}

// streams returns the command's output.
func (p *process) streams(s *startParams) (stdout, stderr stream) {
	if s.files == nil {
		return &output{p: p, channel: chanStdout}, &output{p: p, channel: chanStderr}
	}
	return newPipeOutput(p, s.stdout), newPipeOutput(p, s.stderr)
}

// attach opens a stream for one of the process's streams.
func (p *process) attach(ch channel) (*framer, error) {
	if err := p.c.Err(); err != nil {
		return nil, err
	}
	if p.c.mux.NumStreams() >= maxStreams {
		return nil, fmt.Errorf("%w: %d operations and streams are open at once", primitives.ErrLimit, maxStreams)
	}
	return p.c.openNow(requestFrame(opAttach, &attachRequest{p.token, ch}), true)
}

// output is a command's standard output or error. The first Read opens the stream.
type output struct {
	p       *process
	channel channel

	reading sync.Mutex // held by Read
	data    dataReader

	mu     sync.Mutex
	f      *framer
	closed bool
}

// Read reads the command's output.
func (o *output) Read(b []byte) (int, error) {
	o.reading.Lock()
	defer o.reading.Unlock()
	if err := o.open(); err != nil {
		return 0, o.fail(err)
	}
	n, err := o.data.Read(b)
	if err == nil || err == io.EOF { //nolint:errorlint // dataReader ends with io.EOF itself
		return n, err
	}
	return n, o.fail(err)
}

// open attaches on the first call.
func (o *output) open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.f != nil {
		return closedIf(o.closed)
	}
	f, err := o.p.attach(o.channel)
	if err != nil {
		return err
	}
	if err := f.send(nil); err != nil {
		_ = f.Close()
		return err
	}
	o.f = f
	o.data = dataReader{f: f, onError: o.p.c.remote}
	return nil
}

func closedIf(closed bool) error {
	if closed {
		return fs.ErrClosed
	}
	return nil
}

func (o *output) fail(err error) error {
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		err = fs.ErrClosed
	} else if _, ok := errors.AsType[*primitives.Error](err); !ok {
		if _, remote := errors.AsType[*remoteError](err); !remote && !errors.Is(err, primitives.ErrLimit) {
			err = o.p.c.broken(err)
		}
	}
	return o.p.c.fail("read", o.p.target, err)
}

// Close releases the output: the command's writers get a broken pipe.
func (o *output) Close() error {
	o.mu.Lock()
	attached, again := o.f != nil, o.closed
	o.mu.Unlock()
	if !again && !attached {
		// The guest closes an output that was never attached. If the message cannot be sent,
		// the process has ended, too.
		_ = o.p.f.sendMessage(frameCloseOutput, &controlRequest{Output: o.channel})
	}
	o.release()
	return nil
}

// cut does nothing: the stream itself ends.
func (o *output) cut() {}

// release closes the stream.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	if o.f != nil {
		_ = o.f.Close()
		_ = o.f.SetReadDeadline(time.Now()) // unblocks a Read in progress
	}
}

// newPipes creates the pipes for a command's output, if the guest supports them. The host
// creates them so that it never reads from a descriptor that the sandbox chose. If no
// descriptors are left, the output comes over the stream.
func (c *Sandbox) newPipes(cmd primitives.Command) (stdout, stderr *os.File, theirs []*os.File) {
	if c.mux.guard.pass == nil || cmd.TTY != nil || cmd.Durable {
		return nil, nil, nil
	}
	stdout, out, err := newPipe(true)
	if err != nil {
		return nil, nil, nil
	}
	if cmd.MergeStderr {
		return stdout, nil, []*os.File{out}
	}
	stderr, errOut, err := newPipe(true)
	if err != nil {
		closeAll([]*os.File{stdout, out})
		return nil, nil, nil
	}
	return stdout, stderr, []*os.File{out, errOut}
}

// closePipes closes the host's ends.
func (s *startParams) closePipes() {
	if s.stdout != nil {
		_ = s.stdout.Close()
	}
	if s.stderr != nil {
		_ = s.stderr.Close()
	}
}

// pipeOutput is a command's standard output or error through its own pipe, which bypasses the
// guest. EOF of a pipe does not say why all writers have closed it: a sandbox that dies closes
// it, too. So EOF only counts if the guest still answers afterwards.
type pipeOutput struct {
	p *process
	f *os.File // nil if it is merged into the other

	reading sync.Mutex // held by Read
	read    int64      // bytes, up to sustained
	end     error      // io.EOF once the guest has confirmed it

	mu     sync.Mutex
	large  bool
	closed bool
}

func newPipeOutput(p *process, f *os.File) *pipeOutput {
	o := &pipeOutput{p: p, f: f}
	if f == nil {
		o.end = io.EOF
	}
	return o
}

// Read reads the command's output.
func (o *pipeOutput) Read(b []byte) (int, error) {
	o.reading.Lock()
	defer o.reading.Unlock()
	if o.isClosed() {
		return 0, o.fail(fs.ErrClosed)
	}
	if o.end != nil || len(b) == 0 {
		return 0, o.end
	}
	n, err := o.f.Read(b)
	if err == nil {
		o.count(n)
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		if err = o.p.confirm(); err == nil {
			o.end = io.EOF
			return n, o.end
		}
	}
	return n, o.fail(err)
}

// WriteTo copies the output in larger pieces than io.Copy would, once there is much of it.
func (o *pipeOutput) WriteTo(w io.Writer) (int64, error) { return copyAll(w, o) }

// count enlarges the pipe when sustained bytes have come through it.
func (o *pipeOutput) count(n int) {
	if o.read >= sustained {
		return
	}
	if o.read += int64(n); o.read < sustained {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if o.p.c.mux.mayGrow() {
		o.large = true
		growPipe(o.f, largePipe)
	}
}

func (o *pipeOutput) fail(err error) error {
	switch {
	case o.isClosed():
		err = fs.ErrClosed
	case !isKnown(err):
		err = o.p.c.broken(err)
	}
	return o.p.c.fail("read", o.p.target, err)
}

// isClosed reports whether this output or the process was closed.
func (o *pipeOutput) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed || o.p.usable() != nil
}

// Close closes the pipe: the command's writers get a broken pipe.
func (o *pipeOutput) Close() error {
	o.release()
	return nil
}

func (o *pipeOutput) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	if o.f != nil {
		_ = o.f.Close() // it was only read
	}
	if o.large {
		o.p.c.mux.large.Add(-1)
	}
}

// cut makes Read fail: without the guest, EOF may mean that output was lost.
func (o *pipeOutput) cut() {
	if o.f != nil {
		_ = o.f.SetReadDeadline(past())
	}
}

// confirm asks the guest for an answer and waits for it.
func (p *process) confirm() error {
	answer := make(chan error, 1)
	seq, err := p.expect(answer)
	if err != nil {
		return err
	}
	if err := p.f.sendMessage(frameSync, &controlRequest{Seq: seq}); err != nil {
		return p.c.broken(err)
	}
	return <-answer // also when the control stream ends
}
