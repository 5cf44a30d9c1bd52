package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMain(m *testing.M) {
	if runChild != nil && runChild() {
		return
	}
	testleak.Main(m)
}

// runChild is set by the tests that run this program as a child. It runs the child and reports
// whether this process is one.
var runChild func() bool

// bound is the time limit for everything that must not hang.
const bound = time.Minute

// connect serves p over a pipe and dials it. It checks the result of Serve at the end of the
// test.
func connect(t testing.TB, p primitives.EnvironmentPrimitive, cfg Config) *Sandbox {
	t.Helper()
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(context.WithoutCancel(t.Context()), guest, p, ServeConfig{}) }()
	c, err := Dial(t.Context(), host, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := within(t, served); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

// within receives from ch, or fails the test.
func within[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(bound):
		t.Fatal("nothing happened in time")
		panic("unreachable")
	}
}

func TestHelloDescribesTheSandbox(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{})
	if c.ID() != f.ID() || c.Paths() != f.Paths() || c.Capabilities() != f.Capabilities() {
		t.Errorf("got %q %+v %+v", c.ID(), c.Paths(), c.Capabilities())
	}
	state, err := c.Poll(t.Context())
	if err != nil || !state.Running() {
		t.Errorf("Poll = %+v, %v", state, err)
	}
}

func TestRunReturnsOutputAndStatus(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	tests := []struct {
		name   string
		script string
		opts   primitives.RunOptions
		want   primitives.RunResult
	}{
		{"both streams", "echo out; echo err >&2; exit 3", primitives.RunOptions{}, primitives.RunResult{
			Stdout: []byte("out\n"), Stderr: []byte("err\n"), Status: primitives.ExitStatus{Code: 3, Reason: primitives.ReasonExited},
		}},
		{"input", "cat", primitives.RunOptions{Stdin: strings.NewReader("hello")}, primitives.RunResult{
			Stdout: []byte("hello"), Status: primitives.ExitStatus{Reason: primitives.ReasonExited},
		}},
		{"empty input", "cat", primitives.RunOptions{Stdin: strings.NewReader("")}, primitives.RunResult{
			Status: primitives.ExitStatus{Reason: primitives.ReasonExited},
		}},
		{"limit", "echo 123456", primitives.RunOptions{MaxOutput: 3}, primitives.RunResult{
			Stdout: []byte("123"), StdoutDropped: 4, Status: primitives.ExitStatus{Reason: primitives.ReasonExited},
		}},
		{"signal", "kill -TERM $$", primitives.RunOptions{}, primitives.RunResult{
			Status: primitives.ExitStatus{Code: 143, Signal: "TERM", Reason: primitives.ReasonSignaled},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := primitives.Run(t.Context(), c, primitives.Command{Args: []string{"sh", "-c", tt.script}}, tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestRunIgnoresInputThatIsNotRead(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	r, w := io.Pipe()
	defer w.Close()
	got, err := primitives.Run(t.Context(), c, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{Stdin: r})
	if err != nil || !got.Status.Success() {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestCancelledRunReportsItsStatus(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe() // unread input must not delay the status
	go func() {
		_, _ = w.Write(make([]byte, 4<<20))
	}()
	context.AfterFunc(t.Context(), func() { _ = w.Close() })
	go func() {
		for f.running() == 0 && t.Context().Err() == nil { // before that, there is no status
			runtime.Gosched()
		}
		time.AfterFunc(100*time.Millisecond, cancel)
	}()
	got, err := primitives.Run(ctx, c, primitives.Command{Args: []string{"sleep", "60"}}, primitives.RunOptions{Stdin: r})
	if err != nil || got.Status.Reason != primitives.ReasonCancelled {
		t.Errorf("got %+v, %v", got, err)
	}
	_ = r.Close()
	if n := f.running(); n != 0 {
		t.Errorf("%d processes still run", n)
	}
}

func TestExecStreamsAreIndependent(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	// Standard output gets far more data than any window holds, and nothing reads it.
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "echo first >&2; yes | head -c 8000000; echo last >&2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	line := make([]byte, 6)
	if _, err := io.ReadFull(p.Stderr(), line); err != nil || string(line) != "first\n" {
		t.Fatalf("stderr %q, %v", line, err)
	}
	if _, err := p.Stdout().Read(line[:1]); err != nil { // attach, and then leave it unread
		t.Fatal(err)
	}
	if _, err := c.Stat(t.Context(), "."); err != nil {
		t.Fatalf("another operation: %v", err)
	}
	n, err := io.Copy(io.Discard, p.Stdout())
	if err != nil || n != 8000000-1 {
		t.Fatalf("stdout: %d bytes, %v", n, err)
	}
	rest, err := io.ReadAll(p.Stderr())
	if err != nil || string(rest) != "last\n" {
		t.Errorf("stderr %q, %v", rest, err)
	}
	if status, err := p.Wait(t.Context()); err != nil || !status.Success() {
		t.Errorf("Wait = %+v, %v", status, err)
	}
}

func TestOutputCanBeReadAfterWait(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"echo", "later"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if status, err := p.Wait(t.Context()); err != nil || !status.Success() {
		t.Fatalf("Wait = %+v, %v", status, err)
	}
	if out, err := io.ReadAll(p.Stdout()); err != nil || string(out) != "later\n" {
		t.Errorf("stdout %q, %v", out, err)
	}
	if err := p.Signal(t.Context(), primitives.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after exit: %v", err)
	}
}

func TestStdinReachesTheCommand(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	want := bytes.Repeat([]byte("0123456789"), 300_000)
	go func() {
		_, _ = p.Stdin().Write(want)
		_ = p.Stdin().Close()
	}()
	if got, err := io.ReadAll(p.Stdout()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

func TestWritingToAnExitedCommandFails(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"true"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Stdin().Write([]byte("x")); err == nil || n != 0 {
		t.Errorf("Write = %d, %v", n, err)
	} else if errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("the sandbox is well, but: %v", err)
	}
}

func TestCancellingTheContextEndsTheProcess(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Exec(ctx, primitives.Command{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cancel()
	status, err := p.Wait(t.Context())
	if err != nil || status.Reason != primitives.ReasonCancelled {
		t.Errorf("Wait = %+v, %v", status, err)
	}
}

func TestClosingAProcessEndsIt(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{})
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "yes"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdout().Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n := f.running(); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	if _, err := p.Stdout().Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
}

func TestClosingTheClientEndsItsProcesses(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{})
	if _, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "60"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := f.running(); n != 0 {
		t.Errorf("%d processes still run when Close has returned", n)
	}
	if _, err := c.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat after Close: %v", err)
	}
}

func TestFilesRoundTrip(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	ctx := t.Context()
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 3_000_000} {
		want := bytes.Repeat([]byte{0xc3}, size)
		name := fmt.Sprintf("f\xfe-%d", size)
		if err := c.WriteFile(ctx, name, bytes.NewReader(want), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := primitives.ReadFile(ctx, c, name, 0)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		if info, err := c.Stat(ctx, name); err != nil || info.Size != int64(size) || info.Path != name {
			t.Errorf("Stat = %+v, %v", info, err)
		}
	}
	if err := c.Mkdir(ctx, "d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Move(ctx, "d", "e"); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(ctx, "e", false); err != nil {
		t.Fatal(err)
	}
	_, err := c.Open(ctx, "e")
	where, ok := errors.AsType[*primitives.Error](err)
	if !errors.Is(err, fs.ErrNotExist) || !ok || where.Op != "open" || where.Target != "e" || where.Backend != "fake" {
		t.Errorf("Open of a missing file: %#v", err)
	}
}

func TestListIsComplete(t *testing.T) {
	f := newFake(t)
	c := connect(t, f, Config{Backend: "docker"})
	const files = 3000
	for i := range files {
		if err := os.WriteFile(filepath.Join(f.Paths().Workspace, fmt.Sprintf("%04d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	infos, err := c.List(t.Context(), ".", primitives.ListOptions{})
	if err != nil || len(infos) != files || infos[files-1].Path != "2999" {
		t.Errorf("%d entries, %v", len(infos), err)
	}
	infos, err = c.List(t.Context(), ".", primitives.ListOptions{Limit: 10})
	where, ok := errors.AsType[*primitives.Error](err)
	if len(infos) != 10 || !errors.Is(err, primitives.ErrLimit) || !ok || where.Backend != "docker" {
		t.Errorf("%d entries, %v", len(infos), err)
	}
}
