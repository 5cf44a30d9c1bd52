package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// cuttable is a served fake whose stream can be cut.
type cuttable struct {
	*Sandbox
	fake   *fake
	cut    func()
	sent   *atomic.Int64 // bytes, by the host
	served <-chan error
}

func connectCuttable(t *testing.T) *cuttable {
	t.Helper()
	f := newFake(t)
	return connectCuttableTo(t, f, f)
}

// connectCuttableTo serves p, which wraps f.
func connectCuttableTo(t *testing.T, f *fake, p primitives.EnvironmentPrimitive) *cuttable {
	t.Helper()
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(context.WithoutCancel(t.Context()), guest, p, ServeConfig{}) }()
	conn := &counted{Conn: host}
	c, err := Dial(t.Context(), conn, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &cuttable{Sandbox: c, fake: f, cut: func() { _ = host.Close() }, sent: &conn.bytes, served: served}
}

// counted counts what is written to a connection.
type counted struct {
	net.Conn
	bytes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

func TestLossOfTheStreamEndsEverything(t *testing.T) {
	c := connectCuttable(t)
	ctx := t.Context()
	p, err := c.Exec(ctx, primitives.Command{Args: []string{"sleep", "60"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.Watch(ctx, ".", primitives.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waits := map[string]func() error{
		"Wait":  func() error { _, err := p.Wait(ctx); return err },
		"Read":  func() error { _, err := p.Stdout().Read(make([]byte, 1)); return err },
		"Write": func() error { _, err := io.Copy(p.Stdin(), endlessReader{}); return err },
		"Run": func() error {
			_, err := c.Run(ctx, primitives.Command{Args: []string{"sleep", "60"}}, primitives.RunOptions{})
			return err
		},
		"Watch": func() error {
			for _, err := range events {
				return err
			}
			return nil
		},
		"Upload": func() error { return c.WriteFile(ctx, "x", endlessReader{}, primitives.WriteOptions{}) },
	}
	type outcome struct {
		name string
		err  error
	}
	outcomes := make(chan outcome)
	for name, wait := range waits {
		go func() { outcomes <- outcome{name, wait()} }()
	}
	time.AfterFunc(100*time.Millisecond, c.cut)
	for range waits {
		if o := within(t, outcomes); !errors.Is(o.err, primitives.ErrUnavailable) {
			t.Errorf("%s: %v", o.name, o.err)
		}
	}
	within(t, c.Done())
	if err := within(t, c.served); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n := c.fake.running(); n != 0 {
		t.Errorf("%d processes still run when Serve has returned", n)
	}
	if err := c.Err(); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Err: %v", err)
	}
	if err := p.Close(); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("closing a process that nobody can see any more: %v", err)
	}
}

// endlessReader reads zeros for ever.
type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) { return len(p), nil }

func TestTerminatedIsNotUnavailable(t *testing.T) {
	c := connectCuttable(t)
	report, err := c.Terminate(t.Context())
	if err != nil || len(report.Killed) != 1 {
		t.Fatalf("Terminate = %+v, %v", report, err)
	}
	c.cut()
	within(t, c.Done())
	if _, err := c.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrTerminated) || errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat: %v", err)
	}
	if state, err := c.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("Poll = %+v, %v", state, err)
	}
	if report, err := c.Terminate(t.Context()); err != nil || len(report.Killed) != 0 {
		t.Errorf("Terminate again = %+v, %v", report, err)
	}
}

func TestHangUpEndsTheStreamOfATerminatedSandboxOnly(t *testing.T) {
	c := connect(t, newFake(t), Config{})
	if c.hangUp() {
		t.Fatal("the sandbox lives")
	}
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.hangUp() {
		t.Error("a command is open")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if !c.hangUp() {
		t.Fatal("nothing is open")
	}
	within(t, c.Done())
	if err := c.Err(); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("Err: %v", err)
	}
	if state, err := c.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("Poll = %+v, %v", state, err)
	}
}

// The guest's own answer may arrive before the end of the stream.
func TestPendingOperationsAreUnavailableWhenTheGuestEnds(t *testing.T) {
	for range 200 {
		f := newFake(t)
		host, guest := net.Pipe()
		ctx, end := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, guest, f, ServeConfig{}) }()
		c, err := Dial(t.Context(), host, Config{})
		if err != nil {
			t.Fatal(err)
		}
		source, feed := io.Pipe()
		written := make(chan error, 1)
		go func() { written <- c.WriteFile(t.Context(), "x", source, primitives.WriteOptions{}) }()
		if _, err := feed.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		end()
		if err := within(t, served); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
		_ = feed.Close()
		if err := within(t, written); !errors.Is(err, primitives.ErrUnavailable) {
			t.Fatalf("WriteFile: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	f := newFake(t)
	host, guest := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, guest, f, ServeConfig{}) }()
	c, err := Dial(t.Context(), host, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "60"}}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := within(t, served); !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	if n := f.running(); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	within(t, c.Done())
}

func TestUploadThatIsCutOffIsNotCommitted(t *testing.T) {
	// Whatever the guest receives, only an end frame makes it complete.
	whole := append(requestFrame(opWrite, &writeRequest{Path: "x"}), appendFrame(nil, frameData, []byte("content"))...)
	for _, tt := range []struct {
		name string
		send []byte
		hang bool
		want bool
	}{
		{"with its end", append(bytes.Clone(whole), appendHeader(nil, frameEnd, 0)...), false, true},
		{"without its end", whole, true, false},
		{"inside a frame", whole[:len(whole)-3], true, false},
		{"with an end that has content", append(bytes.Clone(whole), appendFrame(nil, frameEnd, []byte("x"))...), true, false},
		{"with a frame that does not belong", append(bytes.Clone(whole), appendFrame(nil, frameItem, nil)...), true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mux, _ := rawHost(t)
			s, err := mux.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			f := mux.framer(s)
			if err := f.send(tt.send); err != nil {
				t.Fatal(err)
			}
			if tt.hang {
				_ = f.halfClose()
			}
			kind, _, err := f.readMessage(maxReply)
			if err != nil || (kind == frameReply) != tt.want {
				t.Errorf("answer of kind %d, %v", kind, err)
			}
		})
	}
}

func TestUploadStopsWhenItIsRefused(t *testing.T) {
	c := connectCuttable(t)
	c.fake.onWrite = func(context.Context, string, io.Reader) error {
		return fault("write", "x", primitives.ErrNoSpace)
	}
	done := make(chan error, 1)
	go func() { done <- c.WriteFile(t.Context(), "x", endlessReader{}, primitives.WriteOptions{}) }()
	if err := within(t, done); !errors.Is(err, primitives.ErrNoSpace) {
		t.Errorf("WriteFile: %v", err)
	}
}

func TestCancelledUploadLeavesNothing(t *testing.T) {
	c := connectCuttable(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe() // blocks after the first bytes
	defer w.Close()
	go func() {
		_, _ = w.Write([]byte("part"))
		cancel()
	}()
	if err := c.WriteFile(ctx, "x", r, primitives.WriteOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteFile: %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.fake.Paths().Workspace, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

// TestCancelledUploadIsCancelledWhateverTheGuestSays covers a guest that notices first that its
// data was cut off.
func TestCancelledUploadIsCancelledWhateverTheGuestSays(t *testing.T) {
	f := newFake(t)
	begun := make(chan struct{})
	f.onWrite = func(_ context.Context, _ string, r io.Reader) error {
		_, _ = io.ReadFull(r, make([]byte, 4))
		close(begun)
		_, err := io.Copy(io.Discard, r)
		return err
	}
	c := connect(t, f, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	done := make(chan error, 1)
	go func() { done <- c.WriteFile(ctx, "f", r, primitives.WriteOptions{}) }()
	if _, err := io.WriteString(w, strings.Repeat("x", 300_000)); err != nil {
		t.Fatal(err)
	}
	within(t, begun)
	cancel()
	if err := within(t, done); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteFile: %v, want context.Canceled", err)
	}
}

func TestWatchEvents(t *testing.T) {
	c := connectCuttable(t)
	if _, err := c.Watch(t.Context(), "missing", primitives.WatchOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Watch of a missing directory: %v", err)
	}
	events, err := c.Watch(t.Context(), ".", primitives.WatchOptions{MaxContent: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	sent := []primitives.WatchEvent{
		{Op: primitives.OpCreate, Path: "a\xff", Content: bytes.Repeat([]byte("x"), 3<<20), Size: 3 << 20},
		{Op: primitives.OpRename, Path: "b", From: "a", Dir: true},
		{Op: primitives.OpOverflow, Omitted: primitives.OmittedTooLarge},
	}
	go func() {
		for _, e := range sent {
			c.fake.events <- e
		}
		close(c.fake.events)
	}()
	var got []primitives.WatchEvent
	for event, err := range events {
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the end: %v", err)
			}
			break
		}
		got = append(got, event)
	}
	if !reflect.DeepEqual(got, sent) {
		t.Errorf("%d events", len(got))
	}
}

func TestLeavingTheLoopEndsTheWatch(t *testing.T) {
	c := connectCuttable(t)
	events, err := c.Watch(t.Context(), ".", primitives.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { c.fake.events <- primitives.WatchEvent{Op: primitives.OpCreate, Path: "a"} }()
	for _, err := range events {
		if err != nil {
			t.Error(err)
		}
		break
	}
	noStreams(t, c.Sandbox) // and the guest's loop has ended
}

// noStreams waits until the guest has also ended all operations and released their streams.
func noStreams(t *testing.T, c *Sandbox) {
	t.Helper()
	for deadline := time.Now().Add(bound); c.mux.NumStreams() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams are still open", c.mux.NumStreams())
		}
		<-time.After(time.Millisecond) // a call would open a stream
	}
}

func TestManyCommandsAtOnce(t *testing.T) {
	c := connectCuttable(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			want := fmt.Sprint(i)
			res, err := c.Run(t.Context(), primitives.Command{Args: []string{"sh", "-c", "cat; echo $0", want}},
				primitives.RunOptions{Stdin: strings.NewReader(want)})
			if err != nil || string(res.Stdout) != want+want+"\n" {
				t.Errorf("%d: %q, %v", i, res.Stdout, err)
			}
		})
	}
	all.Wait()
}

func TestTooManyStreamsIsALimitNotAHang(t *testing.T) {
	quiet := make(chan struct{})
	c := scriptedGuest(t, func(*framer) { <-quiet })
	defer close(quiet)
	ctx, cancel := context.WithCancel(t.Context())
	var pending sync.WaitGroup
	for range maxStreams {
		pending.Go(func() { _, _ = c.Stat(ctx, "x") })
	}
	for c.mux.NumStreams() < maxStreams && c.Err() == nil {
		runtime.Gosched()
	}
	if _, err := c.Stat(ctx, "x"); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("one more: %v", err)
	}
	if err := c.Err(); err != nil {
		t.Errorf("the stream: %v", err)
	}
	// However many calls wait, the end reaches all of them at once.
	ended := make(chan struct{})
	go func() {
		_ = c.mux.Close()
		pending.Wait()
		close(ended)
	}()
	within(t, ended)
	cancel()
}
