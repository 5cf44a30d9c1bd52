package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// netFake is a fake that uses the network of the machine.
type netFake struct{ *fake }

func (netFake) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, network, address)
}

func (netFake) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// dialedFrom returns both ends of a connection that the host has dialed.
func dialedFrom(t *testing.T, p primitives.Forwarder) (host, inside net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	if host, err = p.Dial(t.Context(), "tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if inside, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = host.Close(), inside.Close() })
	return host, inside
}

// acceptedBy returns both ends of a connection that a listener of the host has accepted.
func acceptedBy(t *testing.T, ln net.Listener) (host, inside net.Conn) {
	t.Helper()
	inside, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if host, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = host.Close(), inside.Close() })
	return host, inside
}

func TestALostHostResetsConnections(t *testing.T) {
	f := newFake(t)
	c := connectCuttableTo(t, f, netFake{f})
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
	cancel() // must not make Accept fail
	if err != nil {
		t.Fatal(err)
	}
	host, dialed := dialedFrom(t, c)
	_, accepted := acceptedBy(t, ln)
	waits, err := net.Dial("tcp", ln.Addr().String()) // announced, and not accepted
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waits.Close() }()
	if _, err := io.WriteString(host, "some"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(dialed, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	c.cut()
	for name, conn := range map[string]net.Conn{"dialed": dialed, "accepted": accepted, "waiting": waits} {
		if _, err := io.ReadAll(conn); err == nil {
			t.Errorf("%s: it reads as the end of the data", name)
		}
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the listener is still there")
	}
	if _, err := io.ReadAll(host); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("the host's end: %v", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Accept: %v", err)
	}
	if err := within(t, c.served); err != nil {
		t.Error(err)
	}
}

func TestConnectionsLeaveRoomForEverythingElse(t *testing.T) {
	f := newFake(t)
	c := connectCuttableTo(t, f, netFake{f})
	ln, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var first net.Conn
	for range maxConns {
		host, _ := acceptedBy(t, ln)
		if first == nil {
			first = host
		}
	}
	if _, err := c.Dial(t.Context(), "tcp", ln.Addr().String()); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("one more: %v", err)
	}
	res, err := c.Run(t.Context(), primitives.Command{Args: []string{"echo", "here"}}, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "here\n" {
		t.Errorf("a command: %q, %v", res.Stdout, err)
	}
	// Closing one connection makes room for a waiting one.
	var waiting sync.WaitGroup
	waiting.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	})
	inside, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	waiting.Wait()
	_ = inside.Close()
}

func TestAConnectionThatIsNotAcceptedIsReset(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	inside, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Close() }()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	slots := make(chan struct{}, 1)
	slots <- struct{}{}
	o := offers{timeout: 1}
	token := o.add(conn, slots)
	if _, err := io.ReadAll(inside); err == nil {
		t.Error("it reads as the end of the data")
	}
	if o.take(token) != nil {
		t.Error("it can still be taken")
	}
	slots <- struct{}{} // the slot is free again
}

// A process may answer and close while the host still sends, for example a server that refuses
// a large request.
func TestAnAnswerBeforeTheEndOfTheQuestionArrives(t *testing.T) {
	f := newFake(t)
	c := connectCuttableTo(t, f, netFake{f})
	host, inside := dialedFrom(t, c)
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = io.Copy(host, bytes.NewReader(make([]byte, 16<<20))) })
	if _, err := io.ReadFull(inside, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(inside, "too large\n"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(host).ReadString('\n')
	if strings.TrimSpace(line) != "too large" {
		t.Errorf("got %q, %v", line, err)
	}
	_ = inside.Close()
	sending.Wait()
}
