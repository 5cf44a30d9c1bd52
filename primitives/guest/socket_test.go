package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// newSocket returns a socket to offer, and its path.
func newSocket(t testing.TB) (*Socket, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return &Socket{Listener: l, Path: path}, path
}

// offered calls before, and then serves a fake that is offered a socket. moved reports whether
// the guest moved to it.
func offered(t *testing.T, socket *Socket, before func()) (c *Sandbox, stdio net.Conn, moved bool) {
	t.Helper()
	return offeredTo(t, ServeConfig{}, socket, before)
}

func offeredTo(t *testing.T, cfg ServeConfig, socket *Socket, before func()) (c *Sandbox, stdio net.Conn, moved bool) {
	t.Helper()
	host, guest := net.Pipe()
	dialed := make(chan error, 1)
	go func() {
		var err error
		c, err = Dial(t.Context(), host, Config{Socket: socket})
		dialed <- err
	}()
	before()
	served := make(chan error, 1)
	go func() { served <- Serve(context.WithoutCancel(t.Context()), guest, newFake(t), cfg) }()
	if err := within(t, dialed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := within(t, served); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	if _, err := c.Stat(t.Context(), "."); err != nil {
		t.Errorf("Stat: %v", err)
	}
	_, moved = c.mux.guard.rw.(*deferredWriter).ReadWriteCloser.(*net.UnixConn)
	return c, guest, moved
}

func TestTheGuestMovesToTheSocketAndLeavesTheStream(t *testing.T) {
	socket, path := newSocket(t)
	c, stdio, moved := offered(t, socket, func() {})
	if !moved {
		t.Error("the guest did not move")
	}
	if _, err := stdio.Read(make([]byte, 1)); err == nil {
		t.Error("the stream is still open")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket can still be found: %v", err)
	}
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"echo", "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Stdout()); string(out) != "hello\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestAGuestThatCannotReachTheSocketStays(t *testing.T) {
	socket, path := newSocket(t)
	socket.Path = path + "-elsewhere"
	if _, _, moved := offered(t, socket, func() {}); moved {
		t.Error("the guest moved")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestAGuestThatStaysTakesNoSocket(t *testing.T) {
	socket, _ := newSocket(t)
	if _, _, moved := offeredTo(t, ServeConfig{StayOnStream: true}, socket, func() {}); moved {
		t.Error("the guest moved")
	}
}

// callAt connects to the socket and writes say.
func callAt(t *testing.T, path string, say []byte) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = conn.Write(say) // the host may have closed it already
	return conn
}

func TestOthersAtTheSocketAreTurnedAway(t *testing.T) {
	token := make([]byte, tokenSize)
	for name, tt := range map[string]struct {
		callers int
		say     []byte
		moves   bool
	}{
		"wrong tokens":                {40, token, true},
		"too much":                    {40, make([]byte, 4096), true},
		"half a token":                {maxCallers / 2, token[1:], true},
		"silence":                     {maxCallers / 2, nil, true},
		"silence that leaves no room": {maxCallers, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var callers []net.Conn
			for try := 1; ; try++ {
				socket, path := newSocket(t)
				begun := time.Now()
				_, _, moved := offered(t, socket, func() {
					for range tt.callers {
						callers = append(callers, callAt(t, path, tt.say))
					}
					if len(tt.say) >= tokenSize {
						for _, c := range callers { // all have been checked
							_, _ = c.Read(make([]byte, 1))
						}
					}
				})
				if moved == tt.moves {
					break
				}
				// On a busy machine the host may have timed out the callers, or the guest.
				if time.Since(begun) < moveTimeout || try == 5 {
					t.Fatalf("the guest moved: %v", moved)
				}
			}
			for _, c := range callers {
				_ = c.SetReadDeadline(time.Now().Add(bound))
				if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("a caller without the token was welcome: %d, %v", n, err)
				}
			}
		})
	}
}

// lyingGuest performs the handshake and then runs script with the offer.
func lyingGuest(t *testing.T, timeout time.Duration, script func(o *offer, stdio net.Conn)) error {
	t.Helper()
	socket, path := newSocket(t)
	host, guest := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = guest.Write(preamble(&hello{ID: "x"}))
		h, _, err := readPreamble(bufio.NewReader(guest), 0)
		if err != nil || h.Offer == nil {
			t.Errorf("the host offered %+v, %v", h.Offer, err)
			return
		}
		script(h.Offer, guest)
	}()
	c, err := Dial(t.Context(), host, Config{Socket: socket, HandshakeTimeout: timeout})
	if err == nil {
		_ = c.Close()
	}
	_ = guest.Close()
	<-ended
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	return err
}

// sendOfferReply answers an offer.
func sendOfferReply(stdio net.Conn, v offerReply) {
	body := encode(&v)
	_, _ = stdio.Write(append(appendLength(nil, len(body)), body...))
}

func TestWhatTheGuestSaysAboutTheSocketIsChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		script func(o *offer, stdio net.Conn)
		want   error
	}{
		"moved, and was never seen": {func(_ *offer, stdio net.Conn) { sendOfferReply(stdio, offerReply{Moved: true}) }, errProtocol},
		"moved with a wrong token": {func(o *offer, stdio net.Conn) {
			o.Token[0]++
			if _, err := o.take(t.Context()); err == nil {
				t.Error("it was welcome")
			}
			sendOfferReply(stdio, offerReply{Moved: true})
		}, errProtocol},
		"an endless verdict": {func(_ *offer, stdio net.Conn) { _, _ = stdio.Write(appendLength(nil, 1<<30)) }, errProtocol},
		"a malformed verdict": {func(_ *offer, stdio net.Conn) {
			_, _ = stdio.Write(append(appendLength(nil, 2), 0xff, 0xff))
		}, errProtocol},
		"silence": {func(*offer, net.Conn) {}, os.ErrDeadlineExceeded},
		"moves and hangs up": {func(o *offer, stdio net.Conn) {
			conn, err := o.take(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			sendOfferReply(stdio, offerReply{Moved: true})
			_ = conn.Close()
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := lyingGuest(t, handshakeTime(errors.Is(tt.want, os.ErrDeadlineExceeded)), tt.script); !errors.Is(err, tt.want) {
				t.Errorf("Dial: %v", err)
			}
		})
	}
}

func TestDialWithASocketEndsWithItsContext(t *testing.T) {
	socket, _ := newSocket(t)
	host, guest := net.Pipe()
	defer guest.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = guest.Write(preamble(&hello{ID: "x"}))
		go silence(guest)
		cancel()
	}()
	if _, err := Dial(ctx, host, Config{Socket: socket}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v", err)
	}
}
