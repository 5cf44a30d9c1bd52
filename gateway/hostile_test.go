package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestAnAgentThatNeverReads checks that a stalled agent loses its slot, and that its call of
// the API ends.
func TestAnAgentThatNeverReads(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		part := make([]byte, 1<<20)
		for r.Context().Err() == nil {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	g, err := New(Config{Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: realKey}}})
	if err != nil {
		t.Fatal(err)
	}
	g.writeTimeout = 50 * time.Millisecond
	at := serve(t, g)
	conn, err := net.Dial("tcp", strings.TrimPrefix(at.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /anthropic/v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Length: 2\r\n\r\n{}", at.Token)
	<-gone
	waitIdle(g)
}

// TestARefusedRequestFreesItsConnection has clients that announce a body and never send it: the server would wait for it.
func TestARefusedRequestFreesItsConnection(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) })
	g, err := New(Config{
		Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", Key: realKey}}, Tools: served, Executors: served,
	})
	if err != nil {
		t.Fatal(err)
	}
	g.bodyTimeout = time.Millisecond
	at := serve(t, g)
	const short, chunked = "Content-Length: 9", "Transfer-Encoding: chunked"
	token := "\r\nX-Api-Key: " + at.Token
	for _, c := range []struct {
		line, header string
		status       int
	}{
		{"POST /anthropic/v1/messages", short, 401},
		{"POST /anthropic/v1/messages", chunked, 401},
		{"POST /anthropic/v1/files", short + token, 403},
		{"HEAD /anthropic", short, 200},
		{"POST /none", short, 404},
		{"POST " + ToolsPath, short, 401},
		{"POST " + ToolsPath, short + token, 401},
		{"POST " + runnerscripts.ExecutorPath, short, 401},
		{"POST http://a.test/", short, 403},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(at.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", c.line, c.header)
		answer, err := io.ReadAll(conn) // until the gateway closes it
		if want := fmt.Sprintf("HTTP/1.1 %d ", c.status); err != nil || !strings.HasPrefix(string(answer), want) {
			t.Errorf("%s with %s: %q, %v", c.line, c.header, answer, err)
		}
		conn.Close()
	}
}

// TestADeadlineOfABodyEndsWithIt checks that the answer has none, and what the server waits for after another error has.
func TestADeadlineOfABodyEndsWithIt(t *testing.T) {
	for _, want := range []error{io.EOF, io.ErrUnexpectedEOF} {
		var last time.Time
		b := &body{ReadCloser: io.NopCloser(iotest.ErrReader(want)), deadline: func(by time.Time) error { last = by; return nil }}
		if _, err := b.Read(nil); !errors.Is(err, want) || last.IsZero() != errors.Is(want, io.EOF) {
			t.Errorf("%v: the deadline is %v", err, last)
		}
	}
}

// TestAStreamThatIsCut checks that the agent can tell a truncated stream from a complete one.
func TestAStreamThatIsCut(t *testing.T) {
	_, at := serveGateway(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", at.URL+"/anthropic/v1/messages", "{}", "X-Api-Key", at.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); err == nil || string(data) != "data: 1\n\n" {
		t.Errorf("got %q, %v", data, err)
	}
}

// FuzzRequest checks that, for any request of a sandbox, only calls of the API are sent, to its
// address, with the key in its header and without the token, and that no answer contains the
// key.
func FuzzRequest(f *testing.F) {
	const token = "0123456789abcdef-the-token"
	for _, line := range []string{
		"POST /anthropic/v1/messages HTTP/1.1", "GET /openai/models/m-1 HTTP/1.1", "POST /gemini/v1beta/models/m:generateContent?key=" + token + " HTTP/1.1",
		"POST http://169.254.169.254/anthropic/v1/messages HTTP/1.1", "CONNECT a:443 HTTP/1.1", "POST /anthropic/../openai/v1/%2e%2e/messages HTTP/1.1",
		"POST /anthropic//v1/messages?x=%00;y HTTP/1.0",
	} {
		f.Add([]byte(line + "\r\nHost: x\r\nX-Api-Key: " + token + "\r\nContent-Length: 2\r\n\r\n{}"))
	}
	outside := regexp.MustCompile(`^/base/(v1/messages(/count_tokens)?|v1/models(/[\w.-]+)?|responses(/compact)?|chat/completions|models(/[\w.-]+)?|v1(beta|alpha)?/models(/[\w.-]+(:\w+)?)?)$`)
	headers := map[string]string{"anthropic.example": "X-Api-Key", "openai.example": "Authorization", "gemini.example": "X-Goog-Api-Key"}
	cfg := Config{Token: token, Upstreams: map[string]Upstream{}}
	for _, api := range []string{"anthropic", "openai", "gemini"} {
		cfg.Upstreams[api] = Upstream{API: runnerscripts.ModelAPI(api), URL: "https://" + api + ".example/base", Key: realKey}
	}
	g, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = g.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		g.send = func(r *http.Request) (*http.Response, error) {
			var sent bytes.Buffer
			if err := r.Clone(r.Context()).Write(&sent); err != nil {
				return nil, err
			}
			header := headers[r.URL.Host]
			if r.URL.Scheme != "https" || header == "" || !outside.MatchString(r.URL.EscapedPath()) || r.Host != "" {
				t.Errorf("%s %s goes out, host %q", r.Method, r.URL, r.Host)
			}
			if strings.Count(sent.String(), realKey) != 1 || !strings.Contains(r.Header.Get(header), realKey) {
				t.Errorf("the key is not only in %s: %s", header, &sent)
			}
			head, _, _ := strings.Cut(sent.String(), "\r\n\r\n")
			if strings.Contains(head, token) {
				t.Errorf("the token goes out: %s", head)
			}
			return &http.Response{StatusCode: 400, Request: r, Header: http.Header{"X-Echo": {realKey}}, Body: io.NopCloser(strings.NewReader("your key is " + realKey))}, nil
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		g.server.Handler.ServeHTTP(w, r.WithContext(t.Context()))
		if whole := fmt.Sprint(w.Header(), w.Body); strings.Contains(whole, realKey) && !bytes.Contains(data, []byte(realKey)) {
			t.Errorf("the answer has the key: %s", whole)
		}
	})
}

// To compare a call with a recording takes long: its size is bounded more.
func TestARecordedCallThatIsTooLarge(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	t.Cleanup(server.Close)
	up := map[string]Upstream{"anthropic": {API: runnerscripts.APIAnthropic, URL: server.URL, Key: realKey}}
	for name, cfg := range map[string]Config{"plain": {Upstreams: up}, "recorded": {Upstreams: up, Record: io.Discard}} {
		_, at := serveConfig(t, cfg)
		text := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", maxRecorded) + `"}]}`
		status, body := ask(t, request(t, "POST", at.URL+"/anthropic/v1/messages", text, "X-Api-Key", at.Token))
		if name == "plain" && status != 200 || name == "recorded" && (status != 403 || !strings.Contains(body, "at most 8 MiB")) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}
