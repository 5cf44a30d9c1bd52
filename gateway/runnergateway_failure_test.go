package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestACoordinatorThatIsNotThere(t *testing.T) {
	handler, _ := recorder(200, "")
	const nowhere = "http://127.0.0.1:1" // any other free port may belong to another test when it is dialed
	_, address, _ := serveRunner(t, handler, func(c *Coordinator) { c.URL = nowhere })
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", address+"/events", `{"session_id":"ses_own"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 502 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s %v", resp.Status, resp.Header)
	}
	status, body := ask(t, request(t, "POST", address+"/events", `{"session_id":"ses_own"}`))
	if status != 502 || !strings.HasPrefix(body, `{"detail":"Failed to connect to Agent Coordinator: dial tcp `) {
		t.Errorf("got %d %s", status, body)
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }))
	defer refusing.Close()
	_, address, _ = serveRunner(t, handler, func(c *Coordinator) {
		c.OAuth2, c.Credential = &OAuth2{TokenURL: refusing.URL, ClientID: "runner", Credential: c.Credential}, KeySource{}
	})
	status, body = ask(t, request(t, "GET", address+"/sessions/ses_own", ""))
	if status != 502 || body != `{"detail":"Failed to connect to Agent Coordinator: the runner gets no token for it; the runner's log says why"}`+"\n" {
		t.Errorf("without a token: %d %s", status, body)
	}
}

// TestACoordinatorThatDoesNotAnswer has one that sends no head of an answer, half of a body, and
// none of it.
func TestACoordinatorThatDoesNotAnswer(t *testing.T) {
	begun, ended := make(chan struct{}, 4), make(chan struct{}, 4)
	hang := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/sessions/ses_own" {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		begun <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}
	g, address, _ := serveRunner(t, hang, nil)
	if g.runner.timeout != 30*time.Second {
		t.Errorf("a call may take %v", g.runner.timeout)
	}
	g.runner.timeout = time.Hour
	// The time is over when the coordinator has the request. Earlier it would not get it.
	forward := g.runner.forward.Transport
	g.runner.forward.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		call, _ := r.Context().Value(coordinatorCallKey{}).(*coordinatorCall)
		go func() {
			select {
			case <-begun:
				call.timer.Reset(0)
			case <-r.Context().Done():
			}
		}()
		return forward.RoundTrip(r)
	})
	for _, path := range []string{"/sessions/ses_own", "/sessions/ses_own/result", "/sessions"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // instead of for ever
		status, body := ask(t, request(t, "GET", address+path, "").WithContext(ctx))
		cancel()
		if status != 504 || body != `{"detail":"Agent Coordinator did not answer within 1h0m0s"}`+"\n" {
			t.Errorf("%s: got %d %s", path, status, body)
		}
		<-ended
	}
	g.runner.timeout = time.Millisecond // the coordinator may get nothing
	if status, body := ask(t, request(t, "GET", address+"/sessions", "")); status != 504 || !strings.Contains(body, "within 1ms") {
		t.Errorf("got %d %s", status, body)
	}
}

// roundTrip is a function that sends requests.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAStreamStreams reads events while the coordinator sends them, and then disconnects. No
// timeout ends a stream.
func TestAStreamStreams(t *testing.T) {
	next, ended := make(chan string), make(chan struct{})
	g, address, _ := serveRunner(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case line := <-next:
				_, _ = io.WriteString(w, line+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				close(ended)
				return
			}
		}
	}, nil)
	timed := make(chan bool, 1)
	inspect := g.runner.forward.ModifyResponse
	g.runner.forward.ModifyResponse = func(resp *http.Response) error {
		err := inspect(resp)
		call, _ := resp.Request.Context().Value(coordinatorCallKey{}).(*coordinatorCall)
		timed <- call.timer.Stop()
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "GET", address+"/sse/sessions?session_id=ses_own", "").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	read := func(line string) {
		t.Helper()
		next <- line
		if !lines.Scan() || lines.Text() != line {
			t.Fatalf("got %q, %v; want %q", lines.Text(), lines.Err(), line)
		}
	}
	read("data: 1")
	if <-timed {
		t.Error("a timeout would have ended the stream")
	}
	read("data: 2")
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the request to the coordinator has not ended")
	}
}

func TestALargeBodyIsRefused(t *testing.T) {
	handler, got := recorder(200, "{}")
	_, address, _ := serveRunner(t, handler, nil)
	large := `{"session_id":"ses_own","x":"` + strings.Repeat("x", maxCall-30-len(`"}`)) + `"}`
	if status, body := ask(t, request(t, "POST", address+"/events", large)); status != 200 {
		t.Fatalf("%d bytes: got %d %s", len(large), status, body)
	}
	if a := <-got; len(a.body) != len(large) {
		t.Errorf("the coordinator got %d bytes of %d", len(a.body), len(large))
	}
	for _, length := range []int64{int64(maxCall) + 1, -1} {
		req := request(t, "POST", address+"/events", strings.Repeat("x", maxCall+1))
		req.ContentLength = length
		if status, body := ask(t, req); status != 413 || body != `{"detail":"Request body has more than 16 MiB"}`+"\n" {
			t.Errorf("got %d %s", status, body)
		}
	}
	if len(got) != 0 {
		t.Error("the coordinator got a large body")
	}
}

// TestTheTokenIsInNoLog has refused, failed and successful requests.
func TestTheTokenIsInNoLog(t *testing.T) {
	var log lockedBuffer
	handler, _ := recorder(200, "no list")
	server := httptest.NewServer(handler)
	defer server.Close()
	o, err := Coordinator{URL: server.URL, Profile: "p"}.Open(t.Context(), ownSession)
	if err != nil {
		t.Fatal(err)
	}
	_, at := serveConfig(t, Config{Coordinator: o, Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace})})
	address := at.Variables()[runnerscripts.CoordinatorURL]
	for _, path := range []string{"/sessions", "/sessions/ses_own", "/x", "/%zz", "/a?b;c", "/sessions/ses_other"} {
		conn, err := net.Dial("tcp", at.Address())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", strings.TrimPrefix(address, at.URL), path)
		if _, err := io.ReadAll(conn); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	if text := log.String(); strings.Contains(text, at.Token) || !strings.Contains(text, "another session") {
		t.Errorf("the log says %s", text)
	}
}

// The executor gets what the coordinator answers, and the log says what is wrong with the settings.
func TestACoordinatorThatRefuses(t *testing.T) {
	for status, want := range map[int]string{http.StatusUnauthorized: "refuses the key", http.StatusNotFound: "have no session ses_own"} {
		var log lockedBuffer
		handler, _ := recorder(status, `{"detail":"no"}`)
		server := httptest.NewServer(handler)
		defer server.Close()
		o, err := Coordinator{URL: server.URL, Profile: "p", Allow: []string{"GET /agents"}}.Open(t.Context(), ownSession)
		if err != nil {
			t.Fatal(err)
		}
		_, at := serveConfig(t, Config{Coordinator: o, Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Warn})})
		for _, path := range []string{"/agents", "/sessions/ses_own", "/sessions/ses_own"} {
			if got, answer := ask(t, request(t, "GET", at.Variables()[runnerscripts.CoordinatorURL]+path, "")); got != status || answer != `{"detail":"no"}` {
				t.Errorf("%d: %s: %d %s", status, path, got, answer)
			}
			if path == "/agents" && status == http.StatusNotFound && strings.Contains(log.String(), want) {
				t.Errorf("of something else the log says %s", log.String())
			}
		}
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%d: the log says %s", status, log.String())
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
