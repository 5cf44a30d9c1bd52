package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// muxFrame returns the header of a yamux frame.
func muxFrame(kind byte, flags uint16, stream, length uint32) []byte {
	b := []byte{0, kind}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, length)
}

// hostileFrames returns harmful frames that a peer may send after the handshake.
func hostileFrames() map[string][]byte {
	twice := append(muxFrame(muxWindow, muxSYN, 1, 0), muxFrame(muxWindow, muxSYN, 1, 0)...)
	return map[string][]byte{
		"garbage":                bytes.Repeat([]byte("garbage!"), 100),
		"a huge frame":           muxFrame(muxData, muxSYN, 1, 1<<31),
		"a flood of pings":       bytes.Repeat(muxFrame(muxPing, muxSYN, 0, 1), 100_000),
		"a flood of streams":     floodOfStreams(),
		"a stream opened twice":  twice,
		"an unknown kind":        muxFrame(9, 0, 1, 0),
		"the end":                nil,
		"cut off inside a frame": muxFrame(muxPing, muxSYN, 0, 1)[:7],
	}
}

func floodOfStreams() []byte {
	var b []byte
	for i := range uint32(2 * hostileStreams) {
		b = append(b, muxFrame(muxWindow, muxSYN, 2*i+1, 0)...)
	}
	return b
}

// endsItself reports whether the peer hangs up after these frames.
func endsItself(name string) bool { return name == "the end" || strings.HasPrefix(name, "cut off") }

func TestServeSurvivesAHostileHost(t *testing.T) {
	for name, frames := range hostileFrames() {
		t.Run(name, func(t *testing.T) {
			host, guest := net.Pipe()
			served := make(chan error, 1)
			go func() { served <- Serve(t.Context(), guest, newFake(t), ServeConfig{}) }()
			go silence(host)
			for _, b := range [][]byte{preamble(&hello{}), frames} {
				if _, err := host.Write(b); err != nil {
					break // the other side hung up, as it should
				}
			}
			if endsItself(name) {
				_ = host.Close()
			}
			err := within(t, served)
			_ = host.Close()
			// For a stream opened twice, the result depends on which of two ends is noticed
			// first. It only matters that Serve ends.
			if (err == nil) != endsItself(name) && name != "a stream opened twice" {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

func TestClientSurvivesAHostileGuest(t *testing.T) {
	for name, frames := range hostileFrames() {
		t.Run(name, func(t *testing.T) {
			host, guest := net.Pipe()
			go func() {
				_, _ = guest.Write(preamble(&hello{ID: "x"}))
				go silence(guest)
				_, _ = guest.Write(frames)
				if endsItself(name) {
					_ = guest.Close()
				}
			}()
			c, err := Dial(t.Context(), host, Config{})
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() {
				_, err := c.Stat(t.Context(), "x")
				result <- err
			}()
			if err := within(t, result); !errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("Stat: %v", err)
			}
			within(t, c.Done())
			if state, err := c.Poll(t.Context()); err != nil || state.Status != primitives.StatusLost {
				t.Errorf("Poll = %+v, %v", state, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			_ = guest.Close()
		})
	}
}

// rawHost performs the handshake with a served fake and returns the session below the
// operations.
func rawHost(t *testing.T) (mux *session, served <-chan error) {
	t.Helper()
	host, guest := net.Pipe()
	result := make(chan error, 1)
	go func() { result <- Serve(context.WithoutCancel(t.Context()), guest, newFake(t), ServeConfig{}) }()
	agreed, err := handshake(t.Context(), host, &hello{}, true, 0, stay)
	if err != nil {
		t.Fatal(err)
	}
	mux, err = newSession(agreed, true, 0, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mux.Close() })
	return mux, result
}

func TestServeAnswersWrongRequests(t *testing.T) {
	mux, _ := rawHost(t)
	tests := []struct {
		name string
		send []byte
		want error // nil: the stream is closed without an answer
	}{
		{"an unknown operation", appendFrame(nil, frameRequest, []byte{250}), errors.ErrUnsupported},
		{"an empty request", appendFrame(nil, frameRequest, nil), os.ErrInvalid},
		{"data before the request", appendFrame(nil, frameData, []byte("x")), os.ErrInvalid},
		{"an unknown kind", appendFrame(nil, 99, []byte("x")), os.ErrInvalid},
		{"a malformed request", appendFrame(nil, frameRequest, []byte{byte(opStat), 0xff}), os.ErrInvalid},
		{"a command without arguments", requestFrame(opExec, &execRequest{}), os.ErrInvalid},
		{"a stream of no process", requestFrame(opAttach, &attachRequest{77, chanStdout}), os.ErrClosed},
		{"a huge frame", appendHeader(nil, frameRequest, 1<<30), nil},
		{"an endless request", endless(frameRequest, maxRequest), nil},
		{"two kinds in one message", append(appendHeader(nil, frameRequest|frameMore, 1), 0, frameData, 0, 0, 0, 0), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := mux.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_ = s.SetDeadline(time.Now().Add(bound))
			f := mux.framer(s)
			sent := make(chan struct{})
			go func() { _ = f.send(tt.send); close(sent) }()
			kind, payload, err := f.readMessage(maxReply)
			<-sent
			if tt.want == nil {
				if !errors.Is(err, errEnded) {
					t.Fatalf("kind %d, %v", kind, err)
				}
				return
			}
			var w wireError
			if err != nil || kind != frameError || decode(payload, &w) != nil {
				t.Fatalf("kind %d, %v", kind, err)
			}
			if err := fromWire(&w, ""); !errors.Is(err, tt.want) {
				t.Errorf("answer: %v", err)
			}
		})
	}
}

// endless returns the start of an endless message, which is longer than most bytes.
func endless(kind byte, most int) []byte {
	frame := append(appendHeader(nil, kind|frameMore, maxFrame), make([]byte, maxFrame)...)
	return bytes.Repeat(frame, 2+most/maxFrame)
}

func TestStreamsThatStaySilentAreLimited(t *testing.T) {
	mux, served := rawHost(t)
	for range 2 * hostileStreams {
		s, err := mux.OpenStream()
		if err != nil {
			break
		}
		if _, err := s.Write([]byte{frameRequest}); err != nil {
			break
		}
	}
	if err := within(t, served); !errors.Is(err, errProtocol) {
		t.Errorf("Serve: %v", err)
	}
}

// scriptedGuest connects to a guest that answers every operation with script.
func scriptedGuest(t *testing.T, script func(f *framer)) *Sandbox {
	t.Helper()
	host, guest := net.Pipe()
	go func() {
		agreed, err := handshake(context.WithoutCancel(t.Context()), guest, &hello{ID: "x"}, false, 0, stay)
		if err != nil {
			return
		}
		mux, err := newSession(agreed, false, 0, hclog.NewNullLogger())
		if err != nil {
			return
		}
		for {
			s, err := mux.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				f := mux.framer(s)
				defer f.Close()
				if _, payload, err := f.readMessage(maxRequest); err != nil || opcode(payload[0]) == opBye {
					return
				}
				script(f)
			}()
		}
	}()
	c, err := Dial(t.Context(), host, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// calls returns the operations by name, as a caller makes them.
func calls() map[string]func(ctx context.Context, c *Sandbox) error {
	cmd := primitives.Command{Args: []string{"x"}}
	return map[string]func(ctx context.Context, c *Sandbox) error{
		"stat":  func(ctx context.Context, c *Sandbox) error { _, err := c.Stat(ctx, "x"); return err },
		"mkdir": func(ctx context.Context, c *Sandbox) error { return c.Mkdir(ctx, "x", 0) },
		"list": func(ctx context.Context, c *Sandbox) error {
			_, err := c.List(ctx, "x", primitives.ListOptions{})
			return err
		},
		"open": func(ctx context.Context, c *Sandbox) error {
			_, err := primitives.ReadFile(ctx, c, "x", 0)
			return err
		},
		"write": func(ctx context.Context, c *Sandbox) error {
			return c.WriteFile(ctx, "x", strings.NewReader("content"), primitives.WriteOptions{})
		},
		"write files": func(ctx context.Context, c *Sandbox) error {
			_, err := c.WriteFiles(ctx, []primitives.File{{Path: "x"}})
			return err
		},
		"run": func(ctx context.Context, c *Sandbox) error {
			_, err := c.Run(ctx, cmd, primitives.RunOptions{MaxOutput: 1})
			return err
		},
		"exec": func(ctx context.Context, c *Sandbox) error {
			p, err := c.Exec(ctx, cmd)
			if err != nil {
				return err
			}
			_, err = p.Wait(ctx)
			return errors.Join(err, p.Close())
		},
		"watch": func(ctx context.Context, c *Sandbox) error {
			events, err := c.Watch(ctx, "x", primitives.WatchOptions{})
			if err != nil {
				return err
			}
			for _, err := range events {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"terminate": func(ctx context.Context, c *Sandbox) error { _, err := c.Terminate(ctx); return err },
	}
}

func TestClientRefusesWrongAnswers(t *testing.T) {
	answers := map[string][]byte{
		"no answer":          nil,
		"a huge frame":       appendHeader(nil, frameReply, 1<<30),
		"an unknown kind":    appendFrame(nil, 99, nil),
		"a request":          requestFrame(opStat, &pathRequest{"x"}),
		"a malformed reply":  appendFrame(nil, frameReply, bytes.Repeat([]byte{0xff}, 40)),
		"a malformed error":  appendFrame(nil, frameError, []byte{0xff}),
		"a frame cut off":    appendHeader(nil, frameReply, 100),
		"an endless message": endless(frameReply, maxReply),
		"malformed items":    bytes.Repeat(appendFrame(nil, frameItem, []byte{0xff}), 100),
		"items, no reply":    appendFrame(nil, frameItem, encode(&listItem{})),
		"too much output":    append(appendFrame(nil, frameStdout, []byte("xx")), appendFrame(nil, frameReply, encode(&runReply{}))...),
	}
	for answer, frames := range answers {
		t.Run(answer, func(t *testing.T) {
			c := scriptedGuest(t, func(f *framer) { _ = f.send(frames) })
			for name, call := range calls() {
				done := make(chan error, 1)
				go func() { done <- call(t.Context(), c) }()
				if err := within(t, done); !errors.Is(err, primitives.ErrUnavailable) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestCallsEndWithTheirContextWhateverTheGuestDoes(t *testing.T) {
	quiet := make(chan struct{})
	c := scriptedGuest(t, func(*framer) { <-quiet })
	defer close(quiet)
	ctx, cancel := context.WithCancel(t.Context())
	pending := make(chan error)
	quick := calls()
	for _, slow := range []string{"terminate", "run", "exec"} { // these wait for processes to end
		delete(quick, slow)
	}
	for _, call := range quick {
		go func() { pending <- call(ctx, c) }()
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	for range quick {
		if err := within(t, pending); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestSilentGuestIsLostWithinKeepAlive(t *testing.T) {
	host, guest := net.Pipe()
	go func() {
		_, _ = guest.Write(preamble(&hello{ID: "x"}))
		silence(guest)
	}()
	defer guest.Close()
	c, err := Dial(t.Context(), host, Config{KeepAlive: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(t.Context(), "x"); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat: %v", err)
	}
	within(t, c.Done())
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzServe(f *testing.F) {
	f.Add(requestFrame(opStat, &pathRequest{"x"}))
	f.Add(append(requestFrame(opWrite, &writeRequest{Path: "x"}), appendFrame(nil, frameData, []byte("x"))...))
	f.Add(append(requestFrame(opWriteFiles, &empty{}), appendFrame(nil, frameData, []byte{0, 0, 0, 3, 1, 1, 1})...))
	f.Add(requestFrame(opRun, &runRequest{Cmd: primitives.Command{Args: []string{"x"}, Stdin: true}}))
	f.Add(appendHeader(nil, frameData|frameMore, 10))
	f.Fuzz(func(t *testing.T, b []byte) {
		host, guest := net.Pipe()
		go silence(host)
		go func() {
			_, _ = host.Write(preamble(&hello{}))
			_, _ = host.Write(muxFrame(muxWindow, muxSYN, 1, 0))
			for part := range slices.Chunk(b, maxFrame) {
				_, _ = host.Write(append(muxFrame(muxData, 0, 1, uint32(len(part))), part...))
			}
			_ = host.Close()
		}()
		if err := Serve(t.Context(), guest, refusing{}, ServeConfig{}); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Serve: %v", err)
		}
	})
}
