package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestMain(m *testing.M) {
	testleak.Main(m)
}

const realKey = "sk-the-real-key-0123456789"

// serveGateway serves a gateway to one upstream of each API, on loopback.
func serveGateway(t *testing.T, upstream http.HandlerFunc) (*Gateway, *runnerscripts.Gateway) {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	cfg := Config{Upstreams: map[string]Upstream{}}
	for _, api := range []runnerscripts.ModelAPI{runnerscripts.APIAnthropic, runnerscripts.APIOpenAI, runnerscripts.APIGemini} {
		cfg.Upstreams[string(api)] = Upstream{API: api, URL: server.URL + "/base", Key: realKey}
	}
	return serveConfig(t, cfg)
}

func serveConfig(t testing.TB, cfg Config) (*Gateway, *runnerscripts.Gateway) {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g, serve(t, g)
}

// serve serves a gateway on loopback and returns its settings.
func serve(t testing.TB, g *Gateway) *runnerscripts.Gateway {
	t.Helper()
	at, end := start(t, g)
	t.Cleanup(end)
	return at
}

func start(t testing.TB, g *Gateway) (at *runnerscripts.Gateway, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	return g.At(l.Addr()), func() {
		if err := errors.Join(g.Close(), <-served); err != nil {
			t.Error(err)
		}
	}
}

// ask sends a request and returns the status and the body.
func ask(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func request(t testing.TB, method, url, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func TestTheKeyTakesThePlaceOfTheToken(t *testing.T) {
	type seen struct {
		Path, Query, Body string
		Header            http.Header
	}
	got := make(chan seen, 1)
	_, at := serveGateway(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got <- seen{r.URL.Path, r.URL.RawQuery, string(data), r.Header}
		_, _ = io.WriteString(w, "answer")
	})
	for _, c := range []struct {
		api               runnerscripts.ModelAPI
		path, want, query string
		header, value     string // sent by the agent
		signed, key       string // in the request to the API
	}{
		{"anthropic", "/v1/messages?beta=true", "/base/v1/messages", "beta=true", "X-Api-Key", at.Token, "X-Api-Key", realKey},
		{"anthropic", "/v1/messages", "/base/v1/messages", "", "Authorization", "Bearer " + at.Token, "X-Api-Key", realKey},
		{"openai", "/responses", "/base/responses", "", "Authorization", "Bearer " + at.Token, "Authorization", "Bearer " + realKey},
		{"openai", "/chat/completions", "/base/chat/completions", "", "Authorization", "bearer " + at.Token, "Authorization", "Bearer " + realKey},
		{"gemini", "/v1beta/models/m-1:streamGenerateContent?alt=sse", "/base/v1beta/models/m-1:streamGenerateContent", "alt=sse", "X-Goog-Api-Key", at.Token, "X-Goog-Api-Key", realKey},
		{"gemini", "/v1beta/models/m-1:generateContent?%24ct=application/x-protobuf&fields=candidates&alt=sse", "/base/v1beta/models/m-1:generateContent", "alt=sse", "X-Goog-Api-Key", at.Token, "X-Goog-Api-Key", realKey},
		{"gemini", "/v1beta/models/m-1:generateContent?key=" + at.Token, "/base/v1beta/models/m-1:generateContent", "", "X-Other", "x", "X-Goog-Api-Key", realKey},
	} {
		t.Run(c.path, func(t *testing.T) {
			req := request(t, "POST", at.URL+at.APIs[c.api]+c.path, `{"question":1}`, c.header, c.value, "Cookie", "a=b", "X-Forwarded-For", "1.2.3.4", "Anthropic-Version", "1",
				"Content-Type", "application/x-protobuf", "X-Http-Method-Override", "PUT", "X-Goog-Fieldmask", "candidates")
			if status, body := ask(t, req); status != 200 || body != "answer" {
				t.Fatalf("got %d %q", status, body)
			}
			s := <-got
			if s.Path != c.want || s.Query != c.query || s.Body != `{"question":1}` || s.Header.Get(c.signed) != c.key || s.Header.Get("Anthropic-Version") != "1" {
				t.Errorf("the API got %+v", s)
			}
			if s.Header.Get("Content-Type") != "application/json" || s.Header.Get("X-Http-Method-Override")+s.Header.Get("X-Goog-Fieldmask") != "" {
				t.Errorf("the API could read another call: %v", s.Header)
			}
			whole := fmt.Sprint(s)
			if strings.Contains(whole, at.Token) || s.Header.Get("Cookie") != "" || s.Header.Get("X-Forwarded-For") != "" {
				t.Errorf("too much went out: %s", whole)
			}
		})
	}
}

func TestOfTwoKeysForOneAPITheOneWithItsNameIsTakenElseTheFirst(t *testing.T) {
	up := Upstream{API: "openai", URL: "http://127.0.0.1:1", Key: realKey}
	for want, names := range map[string][]string{"/openai": {"a", "openai", "z"}, "/b": {"d", "b", "c", "e"}} {
		for range 20 { // the order of a map differs
			ups := map[string]Upstream{}
			for _, name := range names {
				ups[name] = up
			}
			if _, at := serveConfig(t, Config{Upstreams: ups}); at.APIs["openai"] != want {
				t.Errorf("of %v: %s", names, at.APIs["openai"])
			}
		}
	}
}

func TestWithoutTheTokenNothingGoesOut(t *testing.T) {
	refuseAll := func(http.ResponseWriter, *http.Request) { t.Error("a request went out") }
	g, at := serveGateway(t, refuseAll)
	other, elsewhere := serveGateway(t, refuseAll)
	defer other.Close()
	target := at.URL + "/anthropic/v1/messages"
	for name, token := range map[string]string{
		"none": "", "wrong": "guess", "half": at.Token[:32], "more": at.Token + "0", "of another session": elsewhere.Token, "the key itself": realKey,
	} {
		t.Run(name, func(t *testing.T) {
			status, body := ask(t, request(t, "POST", target, "{}", "X-Api-Key", token))
			if status != 401 || strings.Contains(body, at.Token) || strings.Contains(body, realKey) {
				t.Errorf("got %d %s", status, body)
			}
		})
	}
	t.Run("expired", func(t *testing.T) {
		g.mu.Lock()
		g.expires = time.Now().Add(-time.Second)
		g.mu.Unlock()
		if status, body := ask(t, request(t, "POST", target, "{}", "X-Api-Key", at.Token)); status != 401 {
			t.Errorf("got %d %s", status, body)
		}
		g.Renew()
		if !g.admit(at.Token) {
			t.Error("Renew did not help")
		}
	})
	t.Run("revoked", func(t *testing.T) {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if g.admit(at.Token) {
			t.Error("the token is good after Close")
		}
	})
}

func TestOnlyCallsOfTheAPIGoOut(t *testing.T) {
	_, at := serveGateway(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s went out", r.Method, r.URL) })
	for _, line := range []string{
		"POST /anthropic/v1/files", "DELETE /anthropic/v1/messages", "POST /anthropic/v1/messages/batches", "GET /anthropic/v1/organizations",
		"POST /anthropic/v1/../v1/messages", "POST /anthropic/v1//messages", "POST /anthropic/v1%2fmessages", "POST /anthropic/v1/messages/",
		"POST /anthropic//v1/messages", "POST /anthropic/v1/messages%00", "POST /anthropic/%761/messages", "POST /openai/files",
		"POST /openai/v1/responses", "GET /openai/responses", "GET /openai/models/..", "GET /openai/models/%2e%2e", "POST /gemini/v1beta/models/a/b:generateContent",
		"POST /gemini/upload/v1beta/files", "POST /gemini/v1beta/models/..:generateContent", "POST /other/v1/messages", "POST /", "POST //anthropic/v1/messages",
		"POST http://169.254.169.254/anthropic/v1/files", "CONNECT example.com:443", "GET http://127.0.0.1:1/",
	} {
		method, target, _ := strings.Cut(line, " ")
		for _, extra := range []string{"", "Upgrade: websocket\r\nConnection: Upgrade\r\n"} {
			status := sendRaw(t, at, method+" "+target+" HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+at.Token+"\r\n"+extra+"Content-Length: 0\r\n\r\n")
			if status != 403 && status != 404 && status != 400 {
				t.Errorf("%s: %d", line, status)
			}
		}
	}
	if status := sendRaw(t, at, "GET /openai/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+at.Token+"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"); status != 403 {
		t.Errorf("an upgrade: %d", status)
	}
}

// TestSmuggling sends requests that two servers could interpret differently.
func TestSmuggling(t *testing.T) {
	_, at := serveGateway(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "files") || r.Header.Get("X-Injected") != "" {
			t.Errorf("%s %s went out with %v", r.Method, r.URL, r.Header)
		}
	})
	for name, raw := range map[string]string{
		"two lengths":         "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
		"length and chunks":   "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nDELETE /anthropic/v1/files HTTP/1.1\r\nHost: x\r\n\r\n",
		"another encoding":    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"a space":             "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"a line feed":         "X-A: b\rX-Injected: c\r\nContent-Length: 0\r\n\r\n",
		"a folded header":     "X-A: b\r\n X-Injected: c\r\nContent-Length: 0\r\n\r\n",
		"a large header":      "X-A: " + strings.Repeat("a", maxHeader+8192) + "\r\n\r\n",
		"a negative length":   "Content-Length: -1\r\n\r\n",
		"a length of letters": "Content-Length: 0x10\r\n\r\n",
	} {
		status := sendRaw(t, at, "POST /anthropic/v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+at.Token+"\r\n"+raw)
		if status == 200 && name != "length and chunks" && name != "a folded header" {
			t.Errorf("%s: %d", name, status)
		}
	}
}

// sendRaw sends raw as a request and returns the status of the answer.
func sendRaw(t *testing.T, at *runnerscripts.Gateway, raw string) int {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(at.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, raw) }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 400 // the server could not parse the request
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestAnAnswerThatLeadsElsewhereOrRepeatsTheKey(t *testing.T) {
	_, at := serveGateway(t, func(w http.ResponseWriter, r *http.Request) {
		switch data, _ := io.ReadAll(r.Body); string(data) {
		case `{"redirect":1}`:
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		default:
			w.Header().Set("X-Echo", r.Header.Get("X-Api-Key"))
			http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
			http.Error(w, "invalid key "+r.Header.Get("X-Api-Key"), http.StatusForbidden)
		}
	})
	target := at.URL + "/anthropic/v1/messages"
	if status, body := ask(t, request(t, "POST", target, `{"redirect":1}`, "X-Api-Key", at.Token)); status != 502 || !strings.Contains(body, "leads elsewhere") {
		t.Errorf("a redirect: %d %s", status, body)
	}
	resp, err := http.DefaultTransport.RoundTrip(request(t, "POST", target, `{"echo":1}`, "X-Api-Key", at.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if whole := fmt.Sprint(resp.Header, string(data)); err != nil || resp.StatusCode != 403 || strings.Contains(whole, realKey) || !strings.Contains(whole, "[redacted]") || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("an echo: %d %s, %v", resp.StatusCode, whole, err)
	}
}

func TestAnAPIThatIsNotThereIsAnError(t *testing.T) {
	const down = "http://127.0.0.1:1" // any other free port may belong to another test when it is dialed
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	garbage := serveGarbage(t)
	_, at := serveConfig(t, Config{Upstreams: map[string]Upstream{
		"down": {API: "anthropic", URL: down, Key: realKey}, "tls": {API: "anthropic", URL: secure.URL, Key: realKey}, "garbage": {API: "anthropic", URL: garbage, Key: realKey},
	}})
	for _, name := range []string{"down", "tls", "garbage"} {
		status, body := ask(t, request(t, "POST", at.URL+"/"+name+"/v1/messages", "{}", "X-Api-Key", at.Token))
		var said struct{ Error struct{ Message string } }
		if err := json.Unmarshal([]byte(body), &said); err != nil || status != 502 || !strings.Contains(said.Error.Message, "cannot reach the API") || strings.Contains(body, realKey) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

// serveGarbage serves answers that are not HTTP, and returns its URL.
func serveGarbage(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 512))
			_, _ = io.WriteString(conn, "garbage\r\n\r\n")
			_ = conn.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestAStreamIsNotHeldBack also checks that the call of the API ends when the agent
// disconnects.
func TestAStreamIsNotHeldBack(t *testing.T) {
	more, ended := make(chan struct{}), make(chan struct{})
	_, at := serveGateway(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = io.WriteString(w, "data: 2\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", at.URL+"/anthropic/v1/messages", "{}", "X-Api-Key", at.Token).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for _, want := range []string{"data: 1\n", "data: 2\n"} {
		line, err := lines.ReadString('\n')
		if err != nil || line != want {
			t.Fatalf("got %q, %v", line, err)
		}
		if want == "data: 1\n" {
			_, _ = lines.ReadString('\n')
			close(more) // the API continues only after the first event has arrived
		}
	}
	cancel()
	<-ended
}

func TestABodyThatIsTooLarge(t *testing.T) {
	_, at := serveGateway(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	req := request(t, "POST", at.URL+"/anthropic/v1/messages", "", "X-Api-Key", at.Token)
	req.Body, req.ContentLength = io.NopCloser(io.LimitReader(zeros{}, maxBody+1)), maxBody+1
	req.Header.Set("Expect", "100-continue")
	if status, body := ask(t, req); status != 413 {
		t.Errorf("got %d %s", status, body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestOneSandboxDoesNotStarveAnother opens the maximum of connections from one sandbox, and
// then sends a request from another.
func TestOneSandboxDoesNotStarveAnother(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }
	_, hostile := serveGateway(t, answer)
	_, at := serveGateway(t, answer)
	for range maxConns + 50 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(hostile.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "POST /anthropic/v1/messages HTTP/1.1\r\n") // never completed
	}
	if status, body := ask(t, request(t, "POST", at.URL+"/anthropic/v1/messages", "{}", "X-Api-Key", at.Token)); status != 200 || body != "answer" {
		t.Errorf("got %d %s", status, body)
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for name, up := range map[string]Upstream{
		"anthropic": {API: "anthropic"}, "a/b": {API: "anthropic", Key: "k"}, "": {API: "openai", Key: "k"}, "x": {API: "soap", Key: "k"},
		"u": {API: "openai", Key: "k", URL: "ftp://x"}, "p": {API: "openai", Key: "k", URL: "https://user:secret@x"}, "n": {API: "openai", Key: "k\nX-Injected: 1"},
	} {
		g, err := New(Config{Upstreams: map[string]Upstream{name: up}})
		if !errors.Is(err, ErrConfig) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%q: %v", name, err)
		}
		if g != nil {
			_ = g.Close()
		}
	}
}

// TestAShortKeyChangesNoAnswer has a key as servers of local models take it, which is part of
// many words.
func TestAShortKeyChangesNoAnswer(t *testing.T) {
	const said = `{"error":{"kind":"key","message":"k is no known key"}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "k" {
			t.Errorf("the key is %q", r.Header.Get("X-Api-Key"))
		}
		w.Header().Set("X-Kind", "key")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, said)
	}))
	defer server.Close()
	var record strings.Builder
	_, at := serveConfig(t, Config{Record: &record, Upstreams: map[string]Upstream{"anthropic": {API: "anthropic", URL: server.URL, Key: "k"}}})
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", at.URL+"/anthropic/v1/messages", `{"messages":[]}`, "X-Api-Key", at.Token))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || string(data) != said || resp.Header.Get("X-Kind") != "key" || strings.Contains(record.String(), "redacted") {
		t.Errorf("%s %v, recorded %s: %v", data, resp.Header, record.String(), err)
	}
}
