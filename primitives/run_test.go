package primitives_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// process is a Process with the given streams. The contract suite tests real processes.
type process struct {
	primitives.Process
	stdin          io.WriteCloser
	stdout, stderr io.ReadCloser
	status         primitives.ExitStatus
	exited, closed chan struct{} // if exited is nil, the process has exited
}

func (p *process) Stdin() io.WriteCloser { return p.stdin }
func (p *process) Stdout() io.ReadCloser { return p.stdout }
func (p *process) Stderr() io.ReadCloser { return p.stderr }

func (p *process) Wait(context.Context) (primitives.ExitStatus, error) {
	if p.exited != nil {
		<-p.exited
	}
	return p.status, nil
}

func (p *process) Close() error {
	close(p.closed)
	return errors.Join(p.stdout.Close(), p.stderr.Close())
}

func finished(stdout, stderr io.Reader) *process {
	return &process{
		stdout: closer(stdout), stderr: closer(stderr),
		status: primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited},
		closed: make(chan struct{}),
	}
}

// closer keeps a pipe's own Close, which unblocks its reader.
func closer(r io.Reader) io.ReadCloser {
	if c, ok := r.(io.ReadCloser); ok {
		return c
	}
	return io.NopCloser(r)
}

func TestCollectKeepsTheLimitAndCountsTheRest(t *testing.T) {
	p := finished(strings.NewReader(strings.Repeat("o", 1000)), strings.NewReader("err"))
	res, err := primitives.Collect(t.Context(), p, primitives.RunOptions{MaxOutput: 10})
	if err != nil {
		t.Fatal(err)
	}
	if string(res.Stdout) != strings.Repeat("o", 10) || res.StdoutDropped != 990 {
		t.Errorf("stdout %q, dropped %d", res.Stdout, res.StdoutDropped)
	}
	if string(res.Stderr) != "err" || res.StderrDropped != 0 {
		t.Errorf("stderr %q, dropped %d", res.Stderr, res.StderrDropped)
	}
	if !res.Truncated() || res.Status.Code != 3 {
		t.Errorf("truncated %v, code %d", res.Truncated(), res.Status.Code)
	}
	<-p.closed
}

func TestCollectStopsListeningToBackgroundProcesses(t *testing.T) {
	held, writer := io.Pipe() // a grandchild keeps the write end open
	p := finished(held, strings.NewReader(""))
	p.exited = make(chan struct{})
	go func() {
		_, _ = writer.Write([]byte("said before\n")) // returns when it was read
		close(p.exited)
	}()
	res, err := primitives.Collect(t.Context(), p, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "said before\n" {
		t.Fatalf("%q, %v", res.Stdout, err)
	}
	if _, err := writer.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the pipe is still read: %v", err)
	}
}

func TestCollectReportsABrokenWayToTheSandbox(t *testing.T) {
	gone := io.MultiReader(strings.NewReader("part"), errReader{primitives.ErrUnavailable})
	res, err := primitives.Collect(t.Context(), finished(gone, strings.NewReader("")), primitives.RunOptions{})
	if !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("err = %v, want ErrUnavailable", err)
	}
	if string(res.Stdout) != "part" {
		t.Errorf("what arrived before is lost: %q", res.Stdout)
	}
}

func TestCollectFeedsInputAndEndsIt(t *testing.T) {
	var in closeBuffer
	in.closed = make(chan struct{})
	p := finished(waitFor(in.closed), strings.NewReader(""))
	p.stdin, p.exited = &in, in.closed
	if _, err := primitives.Collect(t.Context(), p, primitives.RunOptions{Stdin: strings.NewReader("hello")}); err != nil {
		t.Fatal(err)
	}
	if in.String() != "hello" {
		t.Errorf("the command was fed %q", in.String())
	}
}

func TestRunRefusesWhatNeedsAnOpenProcess(t *testing.T) {
	for _, cmd := range []primitives.Command{
		{Args: []string{"x"}, Durable: true},
		{Args: []string{"x"}, TTY: &primitives.TerminalSize{}},
		{},
	} {
		if _, err := primitives.Run(t.Context(), nil, cmd, primitives.RunOptions{}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Run(%+v) = %v, want fs.ErrInvalid", cmd, err)
		}
	}
}

func TestWhatAPrimitiveLacksIsUnsupported(t *testing.T) {
	var p struct {
		primitives.EnvironmentPrimitive
	}
	if _, err := primitives.Reattach(t.Context(), p, "x", primitives.Offset{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Reattach: %v", err)
	}
	if _, err := primitives.Pack(t.Context(), p, ".", primitives.PackOptions{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Pack: %v", err)
	}
	if err := primitives.Unpack(t.Context(), p, ".", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Unpack: %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

type closeBuffer struct {
	bytes.Buffer
	closed chan struct{}
}

func (b *closeBuffer) Close() error { close(b.closed); return nil }

// waitFor returns a reader that has no data and reaches EOF when done is closed.
func waitFor(done <-chan struct{}) io.Reader {
	r, w := io.Pipe()
	go func() { <-done; w.Close() }()
	return r
}
