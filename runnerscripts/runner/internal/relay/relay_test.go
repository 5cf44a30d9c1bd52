package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/internal/test/testnet"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// nowhere is an address where nothing listens. Any other free port may belong to another test when it is
// dialed.
const nowhere = "127.0.0.1:1"

func relayTo(t *testing.T, target string, patience time.Duration) net.Conn {
	t.Helper()
	r, err := start(t.Context(), target, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestARequestWaitsForTheGateway: a program that listens later answers a request that was sent
// while nothing listened.
func TestARequestWaitsForTheGateway(t *testing.T) {
	target := testnet.FreeAddress(t)
	conn := relayTo(t, target, time.Minute)
	if _, err := io.WriteString(conn, "ping"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", target)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if got, err := io.ReadAll(served); string(got) != "ping" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, err = io.WriteString(served, "pong")
	if err := errors.Join(err, served.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "pong" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestARequestThatWaitsInVainIsAnswered(t *testing.T) {
	conn := relayTo(t, nowhere, 10*time.Millisecond)
	go func() {
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n"+strings.Repeat("x", 4000000))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !resp.Close || !strings.Contains(string(body), "envctl attach") {
		t.Errorf("%+v %q %v", resp, body, err)
	}
}

// TestARequestToTheProxyDoesNotWait: a command that requests a host gets an error at once.
func TestARequestToTheProxyDoesNotWait(t *testing.T) {
	for _, line := range []string{"CONNECT example.com:443", "GET http://example.com/"} {
		conn := relayTo(t, nowhere, 24*time.Hour)
		if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: example.com\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", line, resp.StatusCode)
		}
		_ = conn.Close()
	}
}

// TestATruncatedAnswerIsNotTakenForAWholeOne: when the program of the gateway dies, the agent sees it.
func TestATruncatedAnswerIsNotTakenForAWholeOne(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn := relayTo(t, l.Addr().String(), time.Minute)
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(served, "half"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(served.(*net.TCPConn).SetLinger(0), served.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCloseEndsRunningRequests(t *testing.T) {
	r, err := Start(t.Context(), nowhere)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn, err := net.Dial("tcp", r.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
