package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

const token = "token-of-the-tests"

// newServer returns a server whose sandboxes are in a folder of the test.
func newServer(t testing.TB, change func(*server.Config)) *server.Server {
	t.Helper()
	root := filepath.Join(t.TempDir(), "sandboxes")
	h, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(nil)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	cfg := server.Config{Host: h, Token: token, Configure: func(_ context.Context, cfg *session.Config) error {
		cfg.Environment.Sandbox.Provider = &local.Provider{Root: root}
		return nil
	}}
	if change != nil {
		change(&cfg)
	}
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends a request to a server, with its token unless the headers have another one.
func ask(t testing.TB, h http.Handler, method, path, body string, headers ...string) (status int, answer string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:8377", "127.0.0.1:40000"
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; name {
		case "Host":
			r.Host = value
		case "from":
			r.RemoteAddr = value
		default:
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// fails checks that an answer is an error with a code, and that its message names something.
func fails(t *testing.T, what string, status int, answer, code, names string) {
	t.Helper()
	var said apierror.Body
	if err := json.Unmarshal([]byte(answer), &said); err != nil {
		t.Fatalf("%s: the answer %q is no error: %v", what, answer, err)
	}
	if said.Error.Code != code || !strings.Contains(said.Error.Message, names) {
		t.Errorf("%s: %d %+v, want %s with %q", what, status, said.Error, code, names)
	}
	for _, c := range sessionapi.Codes() {
		if c.Name == code && c.Status != status && status != http.StatusMethodNotAllowed {
			t.Errorf("%s: the status is %d, want %d", what, status, c.Status)
		}
	}
}

func TestWhoMayAsk(t *testing.T) {
	s := newServer(t, nil)
	for name, header := range map[string][]string{
		"no token":      {"Authorization", ""},
		"another one":   {"Authorization", "Bearer another"},
		"as a password": {"Authorization", "Basic " + token},
		"cut off":       {"Authorization", "Bearer " + token[:len(token)-1]},
	} {
		status, answer := ask(t, s, "GET", "/v1/sessions", "", header...)
		fails(t, name, status, answer, "unauthorized", "token")
	}
	if status, answer := ask(t, s, "GET", "/v1/sessions", "", "Host", "agents.example.com"); status != http.StatusOK {
		t.Errorf("with the token: %d %s", status, answer)
	}
	status, answer := ask(t, s, "POST", "/v1/sessions", "{}", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	fails(t, "a page of another origin", status, answer, "forbidden", "origin")
}

// Without a token a page cannot reach the server by a name that its owner points at this machine.
func TestWithoutATokenOnlyThisMachineMayAsk(t *testing.T) {
	s := newServer(t, func(cfg *server.Config) { cfg.Token = "" })
	for _, host := range []string{"127.0.0.1:8377", "localhost:8377", "[::1]:8377", "LOCALHOST", "127.0.0.2"} {
		if status, answer := ask(t, s, "GET", "/v1/sessions", "", "Host", host); status != http.StatusOK {
			t.Errorf("%s: %d %s", host, status, answer)
		}
	}
	for _, host := range []string{"evil.example:8377", "localhost.evil.example", "10.0.0.1", "0.0.0.0", ""} {
		status, answer := ask(t, s, "GET", "/v1/sessions", "", "Host", host)
		fails(t, host, status, answer, "forbidden", "loopback")
	}
	status, answer := ask(t, s, "GET", "/v1/sessions", "", "from", "10.0.0.7:40000")
	fails(t, "from another machine", status, answer, "forbidden", "10.0.0.7")
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), l); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("serving a network without a token: %v", err)
	}
	if _, err := server.New(server.Config{Host: new(session.Host), Token: "short"}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a short token: %v", err)
	}
}

// A client that does not send its body does not hold the connection for ever.
func TestABodyThatDoesNotComeIsNotAwaited(t *testing.T) {
	url, _ := listen(t, newServer(t, nil))
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c) // until the server closes the connection
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 401 ")) {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestRequestsThatAreWrong(t *testing.T) {
	s := newServer(t, nil)
	config := `{"agent":{"name":"script"},"sandbox":"local"}`
	for name, c := range map[string]struct{ method, path, body, code, names string }{
		"no such path":         {"GET", "/v1/nothing", "", "not_found", "openapi.json"},
		"no path at all":       {"GET", "/", "", "not_found", "openapi.json"},
		"another method":       {"PUT", "/v1/sessions", "", "unsupported", "GET"},
		"dots in a path":       {"GET", "/v1/sessions/%2e%2e%2f%2e%2e%2fetc", "", "session_not_found", "no such session"},
		"an unknown session":   {"GET", "/v1/sessions/unknown", "", "session_not_found", "unknown"},
		"a prompt to it":       {"POST", "/v1/sessions/unknown/prompts", `{"text":"x"}`, "session_not_found", "unknown"},
		"no body":              {"POST", "/v1/sessions", "", "invalid", "agent.name"},
		"garbage":              {"POST", "/v1/sessions", "{", "invalid", "body"},
		"two values":           {"POST", "/v1/sessions", `{"config":` + config + `} {}`, "invalid", "after top-level value"},
		"an unknown key":       {"POST", "/v1/sessions", `{"config":` + config + `,"max_queu":1}`, "invalid", "max_queu"},
		"a key twice":          {"POST", "/v1/sessions", `{"config":` + config + `,"max_queue":1,"max_queue":2}`, "invalid", "the key max_queue stands twice"},
		"another type":         {"POST", "/v1/sessions", `{"config":` + config + `,"max_queue":"1"}`, "invalid", "max_queue"},
		"a bad duration":       {"POST", "/v1/sessions", `{"config":` + config + `,"idle_timeout":"1 hour"}`, "invalid", "1 hour"},
		"a key of the config":  {"POST", "/v1/sessions", `{"config":{"agent":"script","sandbx":"local"}}`, "invalid_config", "sandbox"},
		"no agent":             {"POST", "/v1/sessions", `{"config":{"sandbox":"local"}}`, "invalid", "agent.name"},
		"an unknown agent":     {"POST", "/v1/sessions", `{"config":{"sandbox":"local","agent":"claud"}}`, "invalid_config", "claude"},
		"an unknown query key": {"GET", "/v1/sessions?agnt=claude", "", "invalid", "agnt"},
		"a query key twice":    {"GET", "/v1/sessions?agent=a&agent=b", "", "invalid", "duplicate key"},
		"a number that is not": {"GET", "/v1/sessions?limit=-1", "", "invalid", "limit"},
		"a time that is not":   {"GET", "/v1/sessions?since=yesterday", "", "invalid", "since"},
		"a pair that is not":   {"GET", "/v1/sessions?metadata=a", "", "invalid", "KEY=VALUE"},
		"a bad mode":           {"PUT", "/v1/sessions/x/file?path=f&mode=99", "", "invalid", "mode"},
		"too deep":             {"POST", "/v1/sessions", strings.Repeat("[", 15<<20), "invalid", "depth"},
		"too large":            {"POST", "/v1/sessions", `{"config":"` + strings.Repeat("x", 17<<20) + `"}`, "limit", "16 MiB"},
	} {
		status, answer := ask(t, s, c.method, c.path, c.body)
		fails(t, name, status, answer, c.code, c.names)
	}
	status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":`+config+`}`, "Content-Type", "text/plain")
	fails(t, "a form of a page", status, answer, "invalid", "application/json")
	if _, answer := ask(t, s, "GET", "/v1/sessions", ""); answer != `{"sessions":[]}`+"\n" {
		t.Errorf("there are sessions: %s", answer)
	}
}

// What is none of the client's business is in the log, under the number that the client gets.
func TestAnErrorOfTheServerIsInItsLog(t *testing.T) {
	var log bytes.Buffer
	for name, configure := range map[string]func(context.Context, *session.Config) error{
		"an error": func(context.Context, *session.Config) error { return errors.New("the database of db.internal is away") },
		"a panic":  func(context.Context, *session.Config) error { panic("the database of db.internal is away") },
	} {
		log.Reset()
		s := newServer(t, func(cfg *server.Config) {
			cfg.Configure = configure
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
		})
		for _, key := range []string{"", "a key"} {
			status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":{"agent":{"name":"script"},"sandbox":"local"}}`, sessionapi.KeyHeader, key)
			if status != http.StatusInternalServerError || strings.Contains(answer, "db.internal") {
				t.Errorf("%s: %d %s", name, status, answer)
			}
			fails(t, name, status, answer, "internal", "log")
			_, number, found := strings.Cut(strings.TrimSuffix(strings.TrimSpace(answer), `"}}`), ", at ")
			_, entry, logged := strings.Cut(log.String(), "number="+number)
			if !found || !logged || !strings.Contains(entry, "db.internal") {
				t.Errorf("%s: the log has no %q: %s", name, number, log.String())
			}
		}
	}
}

// create makes a session of the scripted agent and returns its ID.
func create(t testing.TB, h http.Handler, turns string, headers ...string) string {
	t.Helper()
	status, answer := ask(t, h, "POST", "/v1/sessions", `{"config":{"agent":{"name":"script","config":{"turns":`+turns+`}},"sandbox":"local"}}`, headers...)
	var made sessionapi.Created
	if err := json.Unmarshal([]byte(answer), &made); err != nil || status != http.StatusOK {
		t.Fatalf("create: %d %s", status, answer)
	}
	return made.ID
}

func TestAChangeWithAKeyIsMadeOnce(t *testing.T) {
	s := newServer(t, nil)
	id := create(t, s, `[{"steps":[{"text":"x"}]}]`, sessionapi.KeyHeader, "one")
	if again := create(t, s, `[{"steps":[{"text":"x"}]}]`, sessionapi.KeyHeader, "one"); again != id {
		t.Errorf("the second time it created %s, at first %s", again, id)
	}
	status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":{}}`, sessionapi.KeyHeader, "one")
	fails(t, "the key with another body", status, answer, "invalid", "same")
	status, answer = ask(t, s, "POST", "/v1/sessions", `{"config":{}}`, sessionapi.KeyHeader, strings.Repeat("k", 300))
	fails(t, "a long key", status, answer, "invalid", "256")
	path := sessionapi.SessionPath(id, "prompts")
	_, first := ask(t, s, "POST", path, `{"text":"a"}`, sessionapi.KeyHeader, "one") // of another path
	_, second := ask(t, s, "POST", path, `{"text":"a"}`, sessionapi.KeyHeader, "one")
	_, third := ask(t, s, "POST", path, `{"text":"a"}`, sessionapi.KeyHeader, "another")
	if first != second || third == first || !strings.Contains(first, `"seq":1`) {
		t.Errorf("the prompts are %s, %s, %s", first, second, third)
	}
}

// A change that was refused because the session is busy is made when it is sent again later.
func TestARefusalOfABusySessionIsNotRemembered(t *testing.T) {
	s := newServer(t, nil)
	status, answer := ask(t, s, "POST", "/v1/sessions", `{"reject_busy":true,"config":{"sandbox":"local","agent":{"name":"script","config":{"turns":[{"steps":[{"delay_ms":3600000}]}]}}}}`)
	var made sessionapi.Created
	if err := json.Unmarshal([]byte(answer), &made); err != nil || status != http.StatusOK {
		t.Fatalf("create: %d %s", status, answer)
	}
	path := sessionapi.SessionPath(made.ID, "prompts")
	if status, answer := ask(t, s, "POST", path, `{"text":"a"}`, sessionapi.KeyHeader, "first"); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	status, answer = ask(t, s, "POST", path, `{"text":"b"}`, sessionapi.KeyHeader, "kk")
	fails(t, "beside another", status, answer, "session_busy", "busy")
	for _, stop := range [][2]string{{"POST", "interrupt"}, {"DELETE", "environment"}} { // the second waits for the end of the query
		if status, answer := ask(t, s, stop[0], sessionapi.SessionPath(made.ID, stop[1]), ""); status >= 300 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	if status, answer := ask(t, s, "POST", path, `{"text":"b"}`, sessionapi.KeyHeader, "kk"); status != http.StatusOK {
		t.Errorf("when it is idle: %d %s", status, answer)
	}
}

// A change whose client has gone is made, and its answer waits.
func TestAChangeGoesOnWithoutItsClient(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(cfg *server.Config) {
		inner := cfg.Configure
		cfg.Configure = func(ctx context.Context, c *session.Config) error {
			close(begun)
			<-goOn
			return errors.Join(ctx.Err(), inner(ctx, c))
		}
	})
	web := httptest.NewServer(s)
	defer web.Close()
	post := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "POST", web.URL+"/v1/sessions", strings.NewReader(`{"config":{"agent":{"name":"script"},"sandbox":"local"}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(sessionapi.KeyHeader, "one")
		return web.Client().Do(r)
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		res, err := post(ctx)
		if err == nil {
			err = res.Body.Close()
		}
		gone <- err
	}()
	<-begun
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client that left: %v", err)
	}
	close(goOn)
	res, err := post(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("the client that asks again: %d %s, %v", res.StatusCode, answer, err)
	}
}

// The description is of OpenAPI 3.1, and has every route with its schemas.
func TestTheInterfaceDescribesItself(t *testing.T) {
	_, answer := ask(t, newServer(t, func(cfg *server.Config) { cfg.Sandboxes = true }), "GET", "/v1/openapi.json", "")
	var api struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			RequestBody struct {
				Content map[string]struct {
					Schema struct{ Properties map[string]any }
				}
			}
			Responses map[string]any
		}
	}
	if err := json.Unmarshal([]byte(answer), &api); err != nil {
		t.Fatal(err)
	}
	post := api.Paths["/v1/sessions"]["post"]
	if api.OpenAPI != "3.1.1" || post.RequestBody.Content["application/json"].Schema.Properties["max_queue"] == nil {
		t.Errorf("the version is %q, and a session is created with %+v", api.OpenAPI, post)
	}
	ids := make(map[string]bool)
	operations := 0
	for path, methods := range api.Paths {
		for method, op := range methods {
			operations++
			if ids[op.OperationID] = true; len(op.Responses) != 2 {
				t.Errorf("%s %s answers %v", method, path, op.Responses)
			}
		}
	}
	if operations != 44 || len(ids) != operations {
		t.Errorf("there are %d operations with %d names", operations, len(ids))
	}
}

// listen serves a server until the test ends or stop is called.
func listen(t testing.TB, s *server.Server) (url string, stop func()) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	ended := false
	stop = func() {
		if cancel(); !ended {
			ended = true
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}
