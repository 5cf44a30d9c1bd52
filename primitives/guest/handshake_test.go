package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// silence discards what the tested side writes, so that its writes do not block.
func silence(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// handshakeTime is short only if the test waits for the timeout. Otherwise it is long enough
// for a busy machine.
func handshakeTime(ends bool) time.Duration {
	if ends {
		return time.Second
	}
	return bound
}

func TestDialRefusesWhatIsNoGuest(t *testing.T) {
	good := preamble(&hello{ID: "x"})
	wrongVersion := bytes.Clone(good)
	binary.BigEndian.PutUint16(wrongVersion[len(magic):], Version+1)
	hugeHello := bytes.Clone(good[:len(magic)+6])
	binary.BigEndian.PutUint32(hugeHello[len(magic)+2:], 1<<31)
	isVersion := func(err error) bool {
		v, ok := errors.AsType[*VersionError](err)
		return ok && v.Ours == Version && v.Theirs == Version+1 && strings.Contains(err.Error(), fmt.Sprintf("speaks %d, the other %d", Version, Version+1))
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	tests := []struct {
		name   string
		send   []byte
		hangUp bool
		want   func(error) bool
		output string
	}{
		{"an error of a shell", []byte("sh: guest: not found\n"), true, is(io.ErrUnexpectedEOF), "sh: guest: not found\n"},
		{"endless garbage", bytes.Repeat([]byte("garbage "), 20_000), false, is(errProtocol), strings.Repeat("garbage ", maxOutput/8)},
		{"silence", nil, false, is(os.ErrDeadlineExceeded), ""},
		{"nothing", nil, true, is(io.ErrUnexpectedEOF), ""},
		{"another version", wrongVersion, false, isVersion, ""},
		{"another version after a banner", append([]byte("Welcome\n"), wrongVersion...), false, isVersion, "Welcome\n"},
		{"a huge hello", hugeHello, false, is(errProtocol), ""},
		{"a malformed hello", append(bytes.Clone(good[:len(magic)+2]), 0, 0, 0, 2, 0xff, 0xff), false, is(errProtocol), ""},
		{"line ends translated", bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n")), true, is(io.ErrUnexpectedEOF), "\x89AGENTENV\r\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, guest := net.Pipe()
			go silence(guest)
			go func() {
				_, _ = guest.Write(tt.send)
				if tt.hangUp {
					_ = guest.Close()
				}
			}()
			defer guest.Close()
			_, err := Dial(t.Context(), host, Config{Backend: "docker", HandshakeTimeout: handshakeTime(tt.want(os.ErrDeadlineExceeded))})
			h, ok := errors.AsType[*HandshakeError](err)
			if !ok || !tt.want(err) || !errors.Is(err, primitives.ErrUnavailable) {
				t.Fatalf("Dial: %v", err)
			}
			if !strings.HasPrefix(h.Output, tt.output) || len(h.Output) > maxOutput {
				t.Errorf("output %q", h.Output)
			}
		})
	}
}

func TestHandshakeCutAtEveryByteFails(t *testing.T) {
	good := preamble(&hello{ID: "x"})
	for i := range good {
		host, guest := net.Pipe()
		go silence(guest)
		go func() {
			_, _ = guest.Write(good[:i])
			_ = guest.Close()
		}()
		if _, err := Dial(t.Context(), host, Config{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("after %d bytes: %v", i, err)
		}
	}
}

func TestBannerIsIgnored(t *testing.T) {
	f := newFake(t)
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() {
		_, _ = guest.Write([]byte("Welcome! \x89AGENT\x89"))
		served <- Serve(context.WithoutCancel(t.Context()), guest, f, ServeConfig{})
	}()
	c, err := Dial(t.Context(), host, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := within(t, served); err != nil {
		t.Error(err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	host, guest := net.Pipe()
	defer guest.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Dial(ctx, host, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v", err)
	}
}

func TestServeRefusesWhatIsNoHost(t *testing.T) {
	wrongVersion := preamble(&hello{})
	wrongVersion[len(magic)+1]++
	tests := []struct {
		name string
		send []byte
		want error
	}{
		{"garbage", []byte("GET / HTTP/1.1\r\n\r\n"), errProtocol},
		{"silence", nil, os.ErrDeadlineExceeded},
		{"another version", wrongVersion, primitives.ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, guest := net.Pipe()
			go silence(host)
			go func() { _, _ = host.Write(tt.send) }()
			defer host.Close()
			err := Serve(t.Context(), guest, newFake(t), ServeConfig{HandshakeTimeout: handshakeTime(errors.Is(tt.want, os.ErrDeadlineExceeded))})
			if _, ok := errors.AsType[*HandshakeError](err); !ok || !errors.Is(err, tt.want) {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(preamble(&hello{ID: "x"}))
	f.Add([]byte("Welcome\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		host, guest := net.Pipe()
		go silence(guest)
		go func() {
			_, _ = guest.Write(b)
			_ = guest.Close()
		}()
		if c, err := Dial(t.Context(), host, Config{}); err == nil {
			_ = c.Close()
		}
		_ = guest.Close()
	})
}
