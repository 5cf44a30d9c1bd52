package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	ownSession     = "ses_own"
	coordinatorKey = "the-coordinators-key-0123456789"
)

// serveRunner serves a gateway to a coordinator and returns the address that executors get.
func serveRunner(t *testing.T, handler http.HandlerFunc, change func(*Coordinator)) (g *Gateway, address, token string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Setenv("TEST_COORDINATOR_KEY", coordinatorKey)
	c := Coordinator{URL: server.URL + "/api", Profile: "coding", Hostname: "builder", Credential: KeySource{Env: "TEST_COORDINATOR_KEY"}}
	if change != nil {
		change(&c)
	}
	o, err := c.Open(t.Context(), ownSession)
	if err != nil {
		t.Fatal(err)
	}
	g, at := serveConfig(t, Config{Coordinator: o})
	vars := at.Variables()
	if vars[runnerscripts.AgentSessionID] != ownSession {
		t.Errorf("the session is %q", vars[runnerscripts.AgentSessionID])
	}
	return g, vars[runnerscripts.CoordinatorURL], at.Token
}

// arrived is a request that has arrived at the coordinator.
type arrived struct {
	line, body string
	header     http.Header
}

// recorder returns a coordinator that answers every request in the same way.
func recorder(status int, answer string) (handler http.HandlerFunc, got chan arrived) {
	got = make(chan arrived, 100)
	return func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got <- arrived{r.Method + " " + r.RequestURI, string(data), r.Header}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}, got
}

// TestWhatTheRunnerGatewayPassesOn has each row of the table of its endpoints, and of the
// requests that it refuses. A row without a request to the coordinator is refused.
func TestWhatTheRunnerGatewayPassesOn(t *testing.T) {
	handler, got := recorder(200, `{"ok":true,"sessions":[]}`)
	_, address, _ := serveRunner(t, handler, func(c *Coordinator) { c.Allow = []string{"POST /runs", "GET /agents/*", "GET /sessions/*/children"} })
	const event = `{ "session_id": "ses_own", "event_type": "message",  "hostname": "h", "n": 1.50 }`
	for name, c := range map[string]struct {
		send, body string
		status     int
		answer     string // a part
		line, out  string // at the coordinator
	}{
		"bind":                             {"POST /bind", `{"session_id":"ses_own","executor_session_id":"e1","project_dir":"/w"}`, 200, `"ok":true`, "POST /api/sessions/ses_own/bind", `{"executor_profile":"coding","executor_session_id":"e1","hostname":"builder","project_dir":"/w"}`},
		"bind without a folder":            {"POST /bind", `{"session_id":"ses_own","executor_session_id":"e1","project_dir":null}`, 200, "", "POST /api/sessions/ses_own/bind", `{"executor_profile":"coding","executor_session_id":"e1","hostname":"builder"}`},
		"bind with what the runner owns":   {"POST /bind", `{"session_id":"ses_own","executor_session_id":"e1","hostname":"evil","executor_profile":"root","executor_type":"x","status":"y"}`, 200, "", "POST /api/sessions/ses_own/bind", `{"executor_profile":"coding","executor_session_id":"e1","hostname":"builder"}`},
		"bind with a query":                {"POST /bind?session_id=ses_other", `{"session_id":"ses_own","executor_session_id":"e1"}`, 200, "", "POST /api/sessions/ses_own/bind", `{"executor_profile":"coding","executor_session_id":"e1","hostname":"builder"}`},
		"bind without a session":           {"POST /bind", `{"executor_session_id":"e1"}`, 400, `{"detail":"session_id required"}`, "", ""},
		"bind with an empty session":       {"POST /bind", `{"session_id":"","executor_session_id":"e1"}`, 400, `{"detail":"session_id required"}`, "", ""},
		"bind without an executor":         {"POST /bind", `{"session_id":"ses_own"}`, 400, `{"detail":"executor_session_id required"}`, "", ""},
		"bind without a body":              {"POST /bind", "", 400, `{"detail":"Request body required"}`, "", ""},
		"bind without JSON":                {"POST /bind", "{", 400, `{"detail":"Invalid JSON: `, "", ""},
		"bind with a list":                 {"POST /bind", "[]", 400, `{"detail":"Invalid JSON: `, "", ""},
		"bind with two sessions":           {"POST /bind", `{"session_id":"ses_other","session_id":"ses_own","executor_session_id":"e1"}`, 400, `{"detail":"Invalid JSON: the key session_id stands twice`, "", ""},
		"bind of another session":          {"POST /bind", `{"session_id":"ses_other","executor_session_id":"e1"}`, 403, `{"detail":"session_id is that of another session"}`, "", ""},
		"bind of a number":                 {"POST /bind", `{"session_id":5,"executor_session_id":"e1"}`, 403, "another session", "", ""},
		"event":                            {"POST /events", event, 200, `"ok":true`, "POST /api/sessions/ses_own/events", event},
		"event without a session":          {"POST /events", `{"event_type":"message"}`, 400, `{"detail":"session_id required"}`, "", ""},
		"event without a body":             {"POST /events", "", 400, `{"detail":"Request body required"}`, "", ""},
		"event without JSON":               {"POST /events", "nothing", 400, `{"detail":"Invalid JSON: `, "", ""},
		"event in UTF-16":                  {"POST /events", "{\x00\"\x00a\x00\"\x00:\x001\x00}\x00", 400, `{"detail":"Invalid JSON: `, "", ""},
		"event of another session":         {"POST /events", `{"session_id":"ses_other"}`, 403, "another session", "", ""},
		"metadata":                         {"PATCH /metadata", `{"session_id":"ses_own","last_resumed_at":"2026-01-01T00:00:00Z","executor_session_id":"e2"}`, 200, "", "PATCH /api/sessions/ses_own/metadata", `{"executor_session_id":"e2","last_resumed_at":"2026-01-01T00:00:00Z"}`},
		"metadata that the executor owns":  {"PATCH /metadata", `{"session_id":"ses_own","project_dir":"/w"}`, 200, "", "PATCH /api/sessions/ses_own/metadata", `{"project_dir":"/w"}`},
		"metadata that the runner owns":    {"PATCH /metadata", `{"session_id":"ses_own","hostname":"evil","executor_profile":"root","executor_session_id":"e2"}`, 200, "", "PATCH /api/sessions/ses_own/metadata", `{"executor_session_id":"e2"}`},
		"metadata without a session":       {"PATCH /metadata", `{"last_resumed_at":"x"}`, 400, `{"detail":"session_id required"}`, "", ""},
		"metadata without a body":          {"PATCH /metadata", "", 400, `{"detail":"Request body required"}`, "", ""},
		"metadata of another session":      {"PATCH /metadata", `{"session_id":"ses_other"}`, 403, "another session", "", ""},
		"session":                          {"GET /sessions/ses_own", "", 200, `"ok":true`, "GET /api/sessions/ses_own", ""},
		"status":                           {"GET /sessions/ses_own/status?a=b", "", 200, "", "GET /api/sessions/ses_own/status?a=b", ""},
		"result":                           {"GET /sessions/ses_own/result", "", 200, "", "GET /api/sessions/ses_own/result", ""},
		"affinity":                         {"GET /sessions/ses_own/affinity", "", 200, "", "GET /api/sessions/ses_own/affinity", ""},
		"list":                             {"GET /sessions", "", 200, `{"sessions":[]}`, "GET /api/sessions", ""},
		"delete":                           {"DELETE /sessions/ses_own", "", 200, "", "DELETE /api/sessions/ses_own", ""},
		"events of the session":            {"GET /sse/sessions?session_id=ses_own", "", 200, "", "GET /api/sse/sessions?session_id=ses_own", ""},
		"a key in the query":               {"GET /sessions/ses_own?api_key=x&a=b", "", 200, "", "GET /api/sessions/ses_own?a=b", ""},
		"allowed":                          {"POST /runs", `{"parent_session_id":"ses_own","prompt":"x"}`, 200, "", "POST /api/runs", `{"parent_session_id":"ses_own","prompt":"x"}`},
		"allowed, any element":             {"GET /agents/a-b", "", 200, "", "GET /api/agents/a-b", ""},
		"allowed, without JSON":            {"POST /runs", "a=b", 400, `{"detail":"Invalid JSON: `, "", ""},
		"allowed, two values":              {"POST /runs", `{"a":1} {"session_id":"ses_other"}`, 400, `{"detail":"Invalid JSON: `, "", ""},
		"allowed, another session":         {"POST /runs", `{"session_id":"ses_other"}`, 403, "session_id is that of another session", "", ""},
		"allowed, another parent":          {"POST /runs", `{"parent_session_id":"ses_other"}`, 403, "parent_session_id is that of another session", "", ""},
		"allowed, another spelling":        {"POST /runs", `{"type":"resume_session","Session_ID":"ses_other"}`, 400, "write session_id for Session_ID", "", ""},
		"allowed, another parent's":        {"POST /runs", `{"parent_session_id":"ses_own","PARENT_SESSION_ID":"ses_own"}`, 400, "write parent_session_id", "", ""},
		"event with another spelling":      {"POST /events", `{"session_id":"ses_own","seſſion_id":"ses_other"}`, 400, "write session_id", "", ""},
		"allowed, another session's path":  {"GET /sessions/ses_other/children", "", 403, "the path is that of another session", "", ""},
		"allowed, another in the query":    {"GET /agents/a?session_id=ses_own&session_id=ses_other", "", 403, "another session", "", ""},
		"another session":                  {"GET /sessions/ses_other", "", 403, "the path is that of another session", "", ""},
		"events of another session":        {"GET /sse/sessions?session_id=ses_other", "", 403, "another session", "", ""},
		"events of all sessions":           {"GET /sse/sessions", "", 403, "add ?session_id=ses_own", "", ""},
		"bind at the coordinator's path":   {"POST /sessions/ses_own/bind", `{"executor_session_id":"e1","hostname":"evil"}`, 403, "send it to /bind", "", ""},
		"change at the coordinator's path": {"PATCH /sessions/ses_own/metadata", `{"hostname":"evil"}`, 403, "send it to /metadata", "", ""},
		"no allowed path":                  {"GET /runners", "", 403, "coordinator.allow", "", ""},
		"no allowed method":                {"PUT /sessions/ses_own", "{}", 403, "coordinator.allow", "", ""},
		"no path":                          {"GET /", "", 403, "does not pass on this path", "", ""},
		"dots":                             {"GET /agents/..", "", 403, "does not pass on this path", "", ""},
		"an encoding":                      {"GET /sessions/ses_own%2F..%2Fses_other", "", 403, "does not pass on this path", "", ""},
		"an empty element":                 {"GET /sessions//ses_own", "", 403, "does not pass on this path", "", ""},
		"a bad query":                      {"GET /sessions/ses_own?a=%zz", "", 400, "Invalid query", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(c.send, " ")
			status, body := ask(t, request(t, method, address+path, c.body, "Content-Type", "text/plain"))
			if status != c.status || !strings.Contains(body, c.answer) {
				t.Errorf("got %d %s", status, body)
			}
			select {
			case a := <-got:
				if a.line != c.line || a.body != c.out {
					t.Errorf("the coordinator got %s %s", a.line, a.body)
				}
				kind := "text/plain" // as it was sent
				if strings.HasPrefix(c.line, "POST /api/sessions/") || method == http.MethodPatch {
					kind = "application/json"
				}
				if a.header.Get("Authorization") != "Bearer "+coordinatorKey || a.header.Get("Content-Type") != kind {
					t.Errorf("its authorization is %q, its type %q", a.header.Get("Authorization"), a.header.Get("Content-Type"))
				}
			default:
				if c.line != "" {
					t.Error("the coordinator got nothing")
				}
			}
		})
	}
}

func TestWhatTheCoordinatorAnswersPassesThrough(t *testing.T) {
	for _, c := range []struct {
		status int
		answer string
	}{
		{201, `{"ok":true}`},
		{200, "no JSON at all"},
		{204, ""},
		{404, `{"detail":"Session not found"}`},
		{409, `{"detail":"running"}`},
		{422, `{"detail":[]}`},
		{500, "<html>"},
		{307, ""},
		{401, `{"detail":"no"}`},
	} {
		handler, _ := recorder(c.status, c.answer)
		_, address, _ := serveRunner(t, handler, nil)
		for _, path := range []string{"/sessions/ses_own", "/events"} {
			method, body := "GET", ""
			if path == "/events" {
				method, body = "POST", `{"session_id":"ses_own"}`
			}
			status, got := ask(t, request(t, method, address+path, body))
			if status != c.status || got != c.answer {
				t.Errorf("%s: got %d %q, want %d %q", path, status, got, c.status, c.answer)
			}
		}
	}
}

func TestOnlyOwnSessionsAreListed(t *testing.T) {
	handler, _ := recorder(200, `{"sessions":[{"session_id":"ses_own","status":"running"},{"session_id":"ses_other","project_dir":"/secret"},{"session_id":"ses_child","parent_session_id":"ses_own"},{"session_id":"ses_x","parent_session_id":null}],"total":4}`)
	_, address, _ := serveRunner(t, handler, nil)
	if status, body := ask(t, request(t, "GET", address+"/sessions", "")); status != 200 || body != `{"sessions":[{"session_id":"ses_own","status":"running"},{"parent_session_id":"ses_own","session_id":"ses_child"}]}` {
		t.Errorf("got %d %s", status, body)
	}
	for status, answer := range map[int]string{200: `[{"session_id":"ses_other"}]`, 503: `{"detail":"busy"}`} {
		handler, _ := recorder(status, answer)
		_, address, _ := serveRunner(t, handler, nil)
		want, text := 502, `{"detail":"Agent Coordinator sent a list of sessions that the gateway cannot read"}`+"\n"
		if status != 200 {
			want, text = status, answer
		}
		if status, body := ask(t, request(t, "GET", address+"/sessions", "")); status != want || body != text {
			t.Errorf("got %d %s", status, body)
		}
	}
}

// TestATokenIsForItsSession checks the two ways to send a token, and the tokens that are refused.
func TestATokenIsForItsSession(t *testing.T) {
	handler, got := recorder(200, "{}")
	before := len(issued.gateways) // of tests that have closed no gateway
	g, address, token := serveRunner(t, handler, nil)
	if len(token) != 64 || g.cfg.TokenLife != 24*time.Hour {
		t.Errorf("a token of %d digits lives for %v", len(token), g.cfg.TokenLife)
	}
	other, _, foreign := serveRunner(t, handler, nil)
	root := strings.TrimSuffix(address, "/"+token)
	const path = "/sessions/ses_own"
	unknown := strings.Repeat("0", len(token))
	check := func(name, url, header string, want int) {
		t.Helper()
		req := request(t, "GET", url, "")
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		status, body := ask(t, req)
		if status != want || strings.Contains(body, token) || strings.Contains(body, foreign) {
			t.Errorf("%s: got %d %s, want %d", name, status, body, want)
		}
		for len(got) > 0 {
			if a := <-got; want != 200 || strings.Contains(fmt.Sprint(a), token) {
				t.Errorf("%s: the coordinator got %v", name, a)
			}
		}
	}
	check("in the path", address+path, "", 200)
	check("in the path, and other authorization", address+path, "Bearer of-the-executor", 200)
	check("in the header", root+path, "Bearer "+token, 200)
	check("none", root+path, "", 401)
	check("unknown in the header", root+path, "Bearer "+unknown, 401)
	check("unknown in the path", root+"/"+unknown+path, "", 401)
	check("unknown in the path, own in the header", root+"/"+unknown+path, "Bearer "+token, 401)
	check("a part", root+"/"+token[:32]+path, "", 401)
	check("the coordinator's key", root+path, "Bearer "+coordinatorKey, 401)
	check("of another session in the path", root+"/"+foreign+path, "", 403)
	check("of another session in the header", root+path, "Bearer "+foreign, 403)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	check("of a session that has ended", root+"/"+foreign+path, "", 401)
	g.mu.Lock()
	g.expires = time.Now().Add(-time.Second)
	g.mu.Unlock()
	check("expired", address+path, "", 401)
	if n := len(issued.gateways) - before; n != 1 {
		t.Errorf("%d tokens are issued", n)
	}
}

// TestTwoGatewaysHaveTheirOwnSettings has two gateways in one program.
func TestTwoGatewaysHaveTheirOwnSettings(t *testing.T) {
	first, gotFirst := recorder(200, "first")
	second, gotSecond := recorder(200, "second")
	_, a, _ := serveRunner(t, first, nil)
	_, b, _ := serveRunner(t, second, func(c *Coordinator) { c.Profile, c.Hostname, c.SessionID = "other", "elsewhere", ownSession })
	for _, c := range []struct {
		address, answer, profile string
		got                      chan arrived
	}{{a, "first", `"coding"`, gotFirst}, {b, "second", `"other"`, gotSecond}, {a, "first", `"coding"`, gotFirst}} {
		_, body := ask(t, request(t, "POST", c.address+"/bind", `{"session_id":"ses_own","executor_session_id":"e"}`))
		if body != c.answer || len(c.got) != 1 {
			t.Fatalf("got %s; the coordinator got %d requests", body, len(c.got))
		}
		if at := <-c.got; !strings.Contains(at.body, c.profile) {
			t.Errorf("the coordinator got %s", at.body)
		}
	}
}

func TestHeadersThatDoNotPass(t *testing.T) {
	got := make(chan http.Header, 1)
	_, address, token := serveRunner(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		h := w.Header()
		h.Set("Connection", "X-Hop")
		for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate", "Set-Cookie"} {
			h.Set(name, "x")
		}
		h.Set("X-Echo", r.Header.Get("Authorization"))
		h.Set("X-Kept", "kept")
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
	}, nil)
	req := request(t, "GET", address+"/sessions/ses_own", "", "Connection", "X-Hop", "X-Hop", "x", "Keep-Alive", "x", "Te", "gzip", "Proxy-Authorization", "Basic x",
		"Authorization", "Bearer of-the-executor", "Cookie", "a=b", "X-Api-Key", "x", "Referer", address, "X-Forwarded-For", "1.2.3.4", "X-Kept", "kept")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	sent := <-got
	for _, name := range []string{"X-Hop", "Keep-Alive", "Te", "Proxy-Authorization", "Cookie", "X-Api-Key", "Referer", "X-Forwarded-For"} {
		if v := sent.Get(name); v != "" {
			t.Errorf("the coordinator got %s: %s", name, v)
		}
	}
	for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate", "Set-Cookie"} {
		if v := resp.Header.Get(name); v != "" {
			t.Errorf("the executor got %s: %s", name, v)
		}
	}
	if sent.Get("Authorization") != "Bearer "+coordinatorKey || sent.Get("X-Kept") != "kept" || resp.Header.Get("X-Kept") != "kept" || strings.Contains(fmt.Sprint(sent), token) {
		t.Errorf("the coordinator got %v", sent)
	}
	if whole := fmt.Sprint(resp.Header, string(body)); strings.Contains(whole, coordinatorKey) || !strings.Contains(string(body), "you sent Bearer [redacted]") {
		t.Errorf("the executor got %s", whole)
	}
	if status, text := ask(t, request(t, "GET", address+"/sessions/ses_own", "", "Connection", "Upgrade", "Upgrade", "websocket")); status != 403 {
		t.Errorf("an upgrade: %d %s", status, text)
	}
}
