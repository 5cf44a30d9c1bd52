package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/session"
)

const acpInitialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}`

// acpClient is a client with a WebSocket.
type acpClient struct {
	t    *testing.T
	conn *websocket.Conn
}

// connectACP connects with a token.
func connectACP(t *testing.T, url string, headers ...string) *acpClient {
	t.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	conn, res, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		t.Fatal(err)
	}
	if res.Header.Get("Acp-Connection-Id") == "" {
		t.Error("the connection has no ID")
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &acpClient{t, conn}
}

type acpAnswer struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    map[string]any
	}
}

// call sends a message and returns the next one that is an answer.
func (c *acpClient) call(message string) acpAnswer {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(message)); err != nil {
		c.t.Fatal(err)
	}
	for {
		_, data, err := c.conn.Read(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		var a acpAnswer
		if err := json.Unmarshal(data, &a); err != nil || bytes.ContainsRune(data, '\n') {
			c.t.Fatalf("%v: %s", err, data)
		}
		if a.Method == "" {
			return a
		}
	}
}

// refused calls, and checks the codes of the error.
func (c *acpClient) refused(message string, code int, name string) {
	c.t.Helper()
	if a := c.call(message); a.Error == nil || a.Error.Code != code || name != "" && a.Error.Data["code"] != name {
		c.t.Errorf("%s: %s, %+v", message, a.Result, a.Error)
	}
}

func acpCall(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":%q,"params":%s}`, method, params)
}

func TestAClientOfTheProtocolHasTheRightsOfItsToken(t *testing.T) {
	s := forCallers(t, func(cfg *server.Config) { cfg.MaxSessions = 1 })
	http, _ := listen(t, s)
	url := "ws" + strings.TrimPrefix(http, "http") + "/acp"
	alice := connectACP(t, url+"?agent=script", as(server.RoleUser, "alice")...)
	alice.call(acpInitialize)
	made := alice.call(acpCall("session/new", `{"cwd":"/p","mcpServers":[]}`))
	var id struct{ SessionID string }
	if err := json.Unmarshal(made.Result, &id); err != nil || id.SessionID == "" {
		t.Fatalf("%s, %+v", made.Result, made.Error)
	}
	alice.refused(acpCall("session/new", `{"cwd":"/p","mcpServers":[]}`), -32600, "too_many")
	for _, config := range []string{`{"sandbox":"local"}`, `{"workspace":[{"folder":"/etc"}]}`, `{"profile":"/etc/shadow"}`} {
		alice.refused(acpCall("session/new", `{"cwd":"/p","mcpServers":[],"_meta":{"agentenv":{"config":`+config+`}}}`), -32602, "forbidden")
	}
	alice.refused(acpCall("session/new", `{"cwd":"/p","mcpServers":[],"_meta":{"agentenv":{"konfig":{}}}}`), -32602, "invalid")
	alice.refused(acpCall("session/new", `{"cwd":"/p","mcpServers":[],"additionalDirectories":["/etc"]}`), -32602, "invalid")
	const servers = `"mcpServers":[{"name":"own","command":"sh","args":[],"env":[]}]`
	alice.refused(acpCall("session/new", `{"cwd":"/p",`+servers+`}`), -32602, "forbidden")
	alice.refused(acpCall("session/load", `{"sessionId":"`+id.SessionID+`","cwd":"/p",`+servers+`}`), -32602, "forbidden")
	bob := connectACP(t, url, as(server.RoleRunner, "bob")...)
	for _, method := range []string{"load", "resume", "close", "prompt", "set_mode"} {
		bob.refused(acpCall("session/"+method, `{"sessionId":"`+id.SessionID+`","cwd":"/p","mcpServers":[],"prompt":[{"type":"text","text":"x"}],"modeId":"default"}`), -32002, "session_not_found")
	}
	if a := bob.call(acpCall("session/delete", `{"sessionId":"`+id.SessionID+`"}`)); a.Error != nil {
		t.Errorf("to delete what does not exist: %+v", a.Error)
	}
	if a := alice.call(acpCall("session/load", `{"sessionId":"`+id.SessionID+`","cwd":"/p","mcpServers":[]}`)); a.Error != nil {
		t.Errorf("her own session: %+v", a.Error)
	}
	for _, c := range []struct {
		message string
		code    int
	}{{"{", -32700}, {"[]", -32700}, {`{"id":3,"method":"session/forget"}`, -32601}, {`{"id":3,"method":"session/list","params":{"cwd":"x"}}`, -32602}} {
		bob.refused(c.message, c.code, "")
	}
	s.SetRate(1)
	carol := connectACP(t, url, as(server.RoleUser, "carol")...) // the first request
	carol.refused(acpInitialize, -32600, "too_many")
	for status, headers := range map[int][]string{401: nil, 403: append(as(server.RoleUser, "alice"), "Origin", "http://evil.example")} {
		h := map[string][]string{}
		for i := 0; i < len(headers); i += 2 {
			h[headers[i]] = []string{headers[i+1]}
		}
		if _, res, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: h}); err == nil || res.StatusCode != status {
			t.Errorf("with %q: %v, %v", headers, res, err)
		}
	}
}

// next returns the next message that is.
func (c *acpClient) next(is func(acpAnswer, string) bool) acpAnswer {
	c.t.Helper()
	for {
		_, data, err := c.conn.Read(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		var a acpAnswer
		if err := json.Unmarshal(data, &a); err != nil {
			c.t.Fatal(err)
		}
		if is(a, string(data)) {
			return a
		}
	}
}

func (c *acpClient) send(message string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(message)); err != nil {
		c.t.Fatal(err)
	}
}

func TestTwoClientsOfOneSession(t *testing.T) {
	url, _ := listen(t, newServer(t, nil))
	url = "ws" + strings.TrimPrefix(url, "http") + "/acp"
	const config = `{"sandbox":"local","agent":{"name":"script","config":{"turns":[
		{"when":"ask","steps":[{"ask":{"run":["true"]}},{"text":"allowed"}]},{"steps":[{"text":"I sleep"},{"run":["sleep","600"]}]}]}}}`
	first := connectACP(t, url, "Authorization", "Bearer "+token)
	first.call(acpInitialize)
	var id struct{ SessionID string }
	made := first.call(acpCall("session/new", `{"cwd":"/p","mcpServers":[],"_meta":{"agentenv":{"config":`+config+`}}}`))
	if err := json.Unmarshal(made.Result, &id); err != nil || made.Error != nil {
		t.Fatalf("%v, %+v", err, made.Error)
	}
	session := `"sessionId":"` + id.SessionID + `"`
	second := connectACP(t, url, "Authorization", "Bearer "+token)
	second.call(acpInitialize)
	if a := second.call(acpCall("session/load", `{`+session+`,"cwd":"/p","mcpServers":[]}`)); a.Error != nil {
		t.Fatalf("%+v", a.Error)
	}
	method := func(name string) func(acpAnswer, string) bool {
		return func(a acpAnswer, _ string) bool { return a.Method == name }
	}
	has := func(text string) func(acpAnswer, string) bool {
		return func(_ acpAnswer, message string) bool { return strings.Contains(message, text) }
	}
	first.send(acpCall("session/prompt", `{`+session+`,"prompt":[{"type":"text","text":"ask"}]}`))
	first.next(method("session/request_permission"))
	second.next(has("user_message_chunk")) // what the other one has said
	asked := second.next(method("session/request_permission"))
	second.refused(acpCall("session/prompt", `{`+session+`,"prompt":[{"type":"text","text":"x"}]}`), -32600, "session_busy")
	second.send(`{"jsonrpc":"2.0","id":` + string(asked.ID) + `,"result":{"outcome":{"outcome":"selected","optionId":"allow_once"}}}`)
	withdrawn, ended := false, false
	first.next(func(a acpAnswer, message string) bool { // in any order
		withdrawn = withdrawn || a.Method == "$/cancel_request"
		ended = ended || strings.Contains(message, `"stopReason":"end_turn"`)
		return withdrawn && ended
	})
	second.next(has(`"allowed"`))

	first.send(acpCall("session/prompt", `{`+session+`,"prompt":[{"type":"text","text":"sleep"}]}`))
	first.next(has("I sleep"))
	if err := first.conn.CloseNow(); err != nil {
		t.Fatal(err)
	}
	second.next(has("I sleep"))
	// The command, which is stopped below.
	second.next(has("sleep 600"))
	second.refused(acpCall("session/prompt", `{`+session+`,"prompt":[{"type":"text","text":"x"}]}`), -32600, "session_busy") // it goes on
	second.send(`{"jsonrpc":"2.0","method":"session/cancel","params":{` + session + `}}`)
	second.next(has(`"failed"`)) // the command that was stopped
}

func TestTheEndOfTheServerEndsItsConnections(t *testing.T) {
	url, stop := listen(t, newServer(t, nil))
	c := connectACP(t, "ws"+strings.TrimPrefix(url, "http")+"/acp", "Authorization", "Bearer "+token)
	c.call(acpInitialize)
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.conn.Read(t.Context())
		ended <- err
	}()
	stop()
	if err := <-ended; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the connection ends with %v", err)
	}
}

// acpRequest sends a request of Streamable HTTP.
func acpRequest(t *testing.T, s http.Handler, method, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, "/acp", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestWrongRequestsOfStreamableHTTP(t *testing.T) {
	s := newServer(t, func(cfg *server.Config) { cfg.Authenticate = byName })
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	first := acpRequest(t, s, "POST", acpInitialize)
	id := first.Header().Get("Acp-Connection-Id")
	var a acpAnswer
	if err := json.Unmarshal(first.Body.Bytes(), &a); err != nil || first.Code != 200 || id == "" || string(a.ID) != "1" {
		t.Fatalf("%d %s, %v", first.Code, first.Body, err)
	}
	at := func(more ...string) []string { return append([]string{"Acp-Connection-Id", id}, more...) }
	prompt := acpCall("session/prompt", `{"sessionId":"a","prompt":[]}`)
	for name, c := range map[string]struct {
		method, body string
		headers      []string
		status       int
		says         string
	}{
		"no connection":        {"POST", prompt, nil, 400, "Acp-Connection-Id"},
		"an unknown one":       {"POST", prompt, []string{"Acp-Connection-Id", "none"}, 404, "none"},
		"another caller's":     {"POST", prompt, at(as(server.RoleUser, "bob")...), 404, id},
		"no session":           {"POST", prompt, at(), 400, "Acp-Session-Id"},
		"another session":      {"POST", prompt, at("Acp-Session-Id", "b"), 400, "Acp-Session-Id"},
		"a second beginning":   {"POST", acpInitialize, at(), 400, "already"},
		"no JSON":              {"POST", "{", at(), 400, ""},
		"a list":               {"POST", "[]", at(), 400, ""},
		"another media type":   {"POST", prompt, at("Content-Type", "text/plain"), 400, "application/json"},
		"a stream of anything": {"GET", "", at("Accept", "text/html"), 400, "text/event-stream"},
		"no stream":            {"GET", "", []string{"Accept", "text/event-stream"}, 400, "Acp-Connection-Id"},
		"another's stream":     {"GET", "", at(append(as(server.RoleUser, "bob"), "Accept", "text/event-stream")...), 404, id},
		"another's end":        {"DELETE", "", at(as(server.RoleUser, "bob")...), 404, id},
		"another method":       {"PUT", "", at(), 405, "only"},
	} {
		if w := acpRequest(t, s, c.method, c.body, c.headers...); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := acpRequest(t, s, "POST", acpCall("session/list", `{}`), at()...); w.Code != 202 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := acpRequest(t, s, "DELETE", "", at()...); w.Code != 202 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestOneRequestReceivesTheMessagesOfAConnection(t *testing.T) {
	url, _ := listen(t, newServer(t, nil))
	do := func(method, body string, headers ...string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, url+"/acp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() }) // always nil
		return res
	}
	id := do("POST", acpInitialize).Header.Get("Acp-Connection-Id")
	stream := do("GET", "", "Acp-Connection-Id", id, "Accept", "text/event-stream")
	if res := do("GET", "", "Acp-Connection-Id", id, "Accept", "text/event-stream"); res.StatusCode != http.StatusConflict {
		t.Errorf("a second one gets %d", res.StatusCode)
	}
	do("POST", acpCall("session/list", `{}`), "Acp-Connection-Id", id)
	lines := bufio.NewReader(stream.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != `data: {"jsonrpc":"2.0","id":2,"result":{"sessions":[]}}`+"\n" {
		t.Errorf("received is %q, %v", line, err)
	}
	do("DELETE", "", "Acp-Connection-Id", id)
	if rest, err := io.ReadAll(lines); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

// What a client of the protocol adds is part of the configuration that the program of the server sees.
func TestTheServersOfAClientAreInItsConfiguration(t *testing.T) {
	var seen []string
	s := forCallers(t, func(cfg *server.Config) {
		cfg.Configure = func(_ context.Context, cfg *session.Config) error {
			for _, m := range cfg.Environment.Profile.MCPServers {
				seen = append(seen, m.Name)
			}
			return fs.ErrPermission
		}
	})
	http, _ := listen(t, s)
	bob := connectACP(t, "ws"+strings.TrimPrefix(http, "http")+"/acp?agent=claude", as(server.RoleRunner, "bob")...)
	bob.call(acpInitialize)
	bob.refused(acpCall("session/new", `{"cwd":"/p","mcpServers":[{"name":"own","command":"sh","args":[],"env":[]}]}`), -32602, "forbidden")
	if !slices.Equal(seen, []string{"own"}) {
		t.Errorf("Configure has seen the servers %q", seen)
	}
}

// A mode is offered only where it can be chosen: not where permissions decide, which a client can bring along.
func TestNoModeIsOfferedWherePermissionsDecide(t *testing.T) {
	url, _ := listen(t, newServer(t, func(cfg *server.Config) { cfg.Modes = func(string) []string { return []string{"default", "other"} } }))
	client := connectACP(t, "ws"+strings.TrimPrefix(url, "http")+"/acp", "Authorization", "Bearer "+token)
	client.call(acpInitialize)
	for permissions, offered := range map[string]bool{`{}`: true, `{"deny":["Bash(rm *)"]}`: false} {
		made := client.call(acpCall("session/new", `{"cwd":"/p","mcpServers":[],"_meta":{"agentenv":{"config":{"sandbox":"local","agent":"script","permissions":`+permissions+`}}}}`))
		if made.Error != nil || strings.Contains(string(made.Result), `"modes"`) != offered || strings.Contains(string(made.Result), `"id":"mode"`) != offered {
			t.Errorf("with %s: %s, %+v", permissions, made.Result, made.Error)
		}
	}
}
