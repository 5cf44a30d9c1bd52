package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// hosted is a service whose audit and messages are kept.
type hosted struct {
	*Service
	mu       sync.Mutex
	records  []Record
	messages []string
}

func host(cfg Config) *hosted {
	h := &hosted{}
	cfg.Audit = func(r Record) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.records = append(h.records, r)
	}
	cfg.OnMessage = func(_ context.Context, m Message) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.messages = append(h.messages, m.Session+" "+string(m.Body))
	}
	h.Service = NewService(cfg)
	return h
}

func (h *hosted) audited() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, r := range h.records {
		all = append(all, fmt.Sprintf("%s %s %s %s", r.Session, r.Method, r.Subject, r.Outcome))
	}
	return strings.Join(all, "; ")
}

func (h *hosted) ask(t *testing.T, session, token, method string, more map[string]any) (json.RawMessage, error) {
	t.Helper()
	p := map[string]any{"session_token": token}
	for k, v := range more {
		p[k] = v
	}
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	result, err := h.Handler(session)(t.Context(), method, raw)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	return data, nil
}

const realKey = "sk-the-real-key"

func demoKey(_ context.Context, name string) (string, error) {
	if name == "broken" {
		return "", errors.New("the variable DEMO_KEY is not set")
	}
	return realKey, nil
}

func TestOnlyAValidTokenOfTheSessionIsServed(t *testing.T) {
	t.Parallel()
	h := host(Config{Credential: demoKey})
	now := time.Now()
	h.Tokens.now = func() time.Time { return now }
	key := map[string]any{"credential_key": "demo"}
	ask := func(token string) error {
		_, err := h.ask(t, "mine", token, MethodGetAPIKey, key)
		return err
	}
	mine := h.Tokens.Issue(Grant{Session: "mine", Credentials: []string{"demo"}})
	twice := h.Tokens.Issue(Grant{Session: "mine", Credentials: []string{"demo"}, MaxUses: 2})
	short := h.Tokens.Issue(Grant{Session: "mine", Credentials: []string{"demo"}, Life: time.Minute})
	other := h.Tokens.Issue(Grant{Session: "other", Credentials: []string{"demo"}})
	if len(mine) != 64 || mine == twice {
		t.Errorf("the token %d characters long", len(mine))
	}
	for _, token := range []string{mine, twice, twice, short} {
		if err := ask(token); err != nil {
			t.Error(err)
		}
	}
	now = now.Add(time.Minute)
	for token, word := range map[string]string{"": "none such", "guess": "none such", mine[:63]: "none such", other: "another session", twice: "used up after 2", short: "expired"} {
		if err := ask(token); code(err) != CodeToken || !strings.Contains(err.Error(), word) || token != "" && strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", word, err)
		}
	}
	h.Tokens.Issue(Grant{Session: "mine", Token: mine, Credentials: []string{"demo"}})
	now = now.Add(24*time.Hour - time.Second)
	if err := ask(mine); err != nil {
		t.Errorf("a day after it was issued again: %v", err)
	}
	now = now.Add(time.Second)
	if err := ask(mine); code(err) != CodeToken || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after a day: %v", err)
	}
	now = now.Add(2 * time.Hour)
	h.Tokens.Issue(Grant{Session: "new"})
	if n := len(h.Tokens.grants); n != 1 {
		t.Errorf("%d tokens are kept", n)
	}
	if got := h.audited(); strings.Count(got, "mine get_api_key  refused") != 7 || strings.Count(got, "mine get_api_key demo delivered") != 5 {
		t.Errorf("audit: %s", got)
	}
}

func TestAKeyIsDeliveredOnlyIfItWasGranted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := host(Config{Credential: demoKey})
	write := AuditTo(&log)
	token := h.Tokens.Issue(Grant{Session: "s", User: "ann", Credentials: []string{"demo", "broken"}})
	got, err := h.ask(t, "s", token, MethodGetAPIKey, map[string]any{"credential_key": "demo"})
	if err != nil || string(got) != `{"api_key":"`+realKey+`"}` {
		t.Errorf("it got %s, %v", got, err)
	}
	for name, word := range map[string]string{"other": "was granted no credential", "broken": "DEMO_KEY is not set"} {
		if _, err := h.ask(t, "s", token, MethodGetAPIKey, map[string]any{"credential_key": name}); code(err) != CodeCredential || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v", name, err)
		}
	}
	plain := h.Tokens.Issue(Grant{Session: "s"})
	for _, p := range []map[string]any{nil, {"credential": "demo"}, {"credential_key": ""}} {
		if _, err := h.ask(t, "s", token, MethodGetAPIKey, p); code(err) != CodeInvalidParams || !strings.Contains(err.Error(), "give credential_key") {
			t.Errorf("%v: %v", p, err)
		}
	}
	if _, err := h.ask(t, "s", plain, MethodGetAPIKey, map[string]any{"credential_key": "demo"}); code(err) != CodeCredential {
		t.Errorf("without a grant: %v", err)
	}
	for _, r := range h.records {
		write(r)
	}
	if strings.Contains(log.String(), realKey) || strings.Contains(log.String(), token) || strings.Count(log.String(), "\n") != 4 || !strings.Contains(log.String(), `"user":"ann"`) {
		t.Errorf("audit: %s", log.String())
	}
}

func TestPermissionIsDecidedByPolicyThenByTheUser(t *testing.T) {
	t.Parallel()
	policy, err := permission.New(permission.Rules{Allow: []string{"Bash(git status)"}, Deny: []string{"Bash(git push *)"}}, permission.Place{Workspace: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	cfg := Config{Policy: policy, PermissionTimeout: -1, OnPermission: func(ctx context.Context, p Permission) runnerscripts.PermissionDecision {
		if p.ToolCall.Title != "wait" { // which may be over before it is asked
			asked = append(asked, p.Session+" "+p.ToolCall.Title)
		}
		if p.MayDeny != "" {
			return p.Reject("it may be " + p.MayDeny)
		}
		switch p.ToolCall.Title {
		case "yes":
			return p.Allow()
		case "no":
			return p.Reject("not today")
		case "always":
			return runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways} // not offered
		}
		<-ctx.Done()
		return p.Allow()
	}}
	h := host(cfg)
	cfg.PermissionTimeout = time.Millisecond // on a busy machine an answer that comes at once may take longer
	hurried := host(cfg)
	tokens := map[*hosted]string{}
	for _, h := range []*hosted{h, hurried} {
		tokens[h] = h.Tokens.Issue(Grant{Session: "s"})
	}
	for command, want := range map[string]string{
		"git status": "policy", "git push origin": "the rule deny: Bash(git push *)",
		"yes": "user", "no": "not today", "always": "does not offer", "wait": "not answered in time",
		"git -C . push": "it may be Bash(git push *)",
	} {
		by := h
		if command == "wait" {
			by = hurried
		}
		got, err := by.ask(t, "s", tokens[by], MethodRequestPermission, map[string]any{
			"tool_name": "Bash", "title": command, "tool_input": map[string]string{"command": command},
		})
		switch {
		case want == "policy" || want == "user":
			if err != nil || !strings.Contains(string(got), `"allow":true,"scope":"once","decided_by":"`+want+`"`) {
				t.Errorf("%s: %s, %v", command, got, err)
			}
		case code(err) != CodeDenied || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %s, %v", command, got, err)
		}
	}
	slices.Sort(asked)
	if strings.Join(asked, ", ") != "s always, s git -C . push, s no, s yes" {
		t.Errorf("asked: %q", asked)
	}
	if got := h.audited() + hurried.audited(); strings.Count(got, "s request_permission Bash allowed") != 2 || strings.Count(got, "s request_permission Bash denied") != 5 {
		t.Errorf("audit: %s", got)
	}
	if _, err := h.ask(t, "s", tokens[h], MethodRequestPermission, nil); code(err) != CodeInvalidParams {
		t.Errorf("without a tool: %v", err)
	}
	alone := host(Config{})
	if _, err := alone.ask(t, "s", alone.Tokens.Issue(Grant{Session: "s"}), MethodRequestPermission, map[string]any{"tool_name": "Bash"}); code(err) != CodeDenied {
		t.Errorf("with nobody to ask: %v", err)
	}
}

func TestTheEndOfASessionEndsItsRequests(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	h := host(Config{OnPermission: func(ctx context.Context, p Permission) runnerscripts.PermissionDecision {
		close(begun)
		<-ctx.Done()
		return p.Allow()
	}})
	token := h.Tokens.Issue(Grant{Session: "s", User: "ann"})
	go func() {
		<-begun
		h.Tokens.Issue(Grant{Session: "s", User: "bob", Token: token}) // the request stays one of the session
		h.End("s")
	}()
	if _, err := h.ask(t, "s", token, MethodRequestPermission, map[string]any{"tool_name": "Bash"}); code(err) != CodeToken {
		t.Errorf("error %v", err)
	}
	if got := h.records[0].User; got != "ann" {
		t.Errorf("a request from before the token was issued again is of %q", got)
	}
	if _, err := h.ask(t, "s", token, MethodReportMessage, map[string]any{"message": 1}); code(err) != CodeToken {
		t.Errorf("after it: %v", err)
	}
}

// post sends a message to the endpoint.
func post(t *testing.T, url, bearer, body string) (int, message) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m message
	_ = json.NewDecoder(resp.Body).Decode(&m)
	return resp.StatusCode, m
}

func TestTheEndpointServesBothDirections(t *testing.T) {
	h := host(Config{Credential: demoKey})
	server := httptest.NewServer(h)
	defer http.DefaultClient.CloseIdleConnections()
	defer server.Close()
	token := h.Tokens.Issue(Grant{Session: "s", Credentials: []string{"demo"}})
	if status, m := post(t, server.URL, token, `{"jsonrpc":"2.0","id":7,"method":"get_api_key","params":{"credential_key":"demo"}}`); status != 200 || string(m.ID) != "7" || !strings.Contains(string(m.Result), realKey) {
		t.Errorf("%d: %+v", status, m)
	}
	if status, _ := post(t, server.URL, token, `{"jsonrpc":"2.0","method":"report_message","params":{"message":{"a":1}}}`); status != 202 || len(h.messages) != 1 || h.messages[0] != `s {"a":1}` {
		t.Errorf("%d: %q", status, h.messages)
	}
	if status, m := post(t, server.URL, token, `{"jsonrpc":"2.0","id":7,"method":"get_api_key","params":{"credential_key":"x"}}`); status != 200 || m.Error.Code != CodeCredential {
		t.Errorf("%d: %+v", status, m)
	}
	for body, want := range map[string]int{"x": 400, `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", MaxMessage) + `"}`: 413} {
		if status, m := post(t, server.URL, token, body); status != want || m.Error == nil {
			t.Errorf("%d: %+v", status, m)
		}
	}
	for _, body := range []string{`{"jsonrpc":"2.0","id":1,"method":"get_api_key"}`, `{"jsonrpc":"2.0","id":1,"result":1}`, `{"jsonrpc":"2.0","method":"report_message","params":{"message":1}}`} {
		if status, m := post(t, server.URL, "wrong", body); status != 401 || m.Error.Code != CodeToken {
			t.Errorf("%s: %d: %+v", body, status, m)
		}
	}

	// Without a token in its header a message is refused before it is read.
	unsent, w := io.Pipe()
	defer w.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, unsent)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("without a token: %v, %v", resp, err)
	}
	resp.Body.Close()

	// The host asks before the executor is connected.
	result := make(chan error, 1)
	go func() { result <- Ping(t.Context(), h.Remote("s")) }()
	read := func() *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	stream := read()
	defer stream.Body.Close()
	var m message
	in := json.NewDecoder(stream.Body)
	if err := in.Decode(&m); err != nil || m.Method != MethodPing {
		t.Fatalf("%+v, %v", m, err)
	}
	second := read()
	second.Body.Close()
	if second.StatusCode != http.StatusConflict {
		t.Errorf("a second reader: %d", second.StatusCode)
	}
	other := h.Tokens.Issue(Grant{Session: "other"})
	answer := `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{}}`
	if status, _ := post(t, server.URL, other, answer); status != 202 { // of no request of that session
		t.Errorf("%d", status)
	}
	select {
	case err := <-result:
		t.Fatalf("another session has answered: %v", err)
	default:
	}
	if status, _ := post(t, server.URL, token, answer); status != 202 {
		t.Errorf("%d", status)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	h.End("s")
	if err := in.Decode(&m); !errors.Is(err, io.EOF) {
		t.Errorf("the stream goes on: %+v, %v", m, err)
	}
}

// An executor that has left does not wait for an answer, and one that reads nothing gets no more.
func TestTheEndpointWaitsForNobody(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	h := host(Config{OnPermission: func(ctx context.Context, p Permission) runnerscripts.PermissionDecision {
		close(begun)
		<-ctx.Done()
		close(ended)
		return p.Allow()
	}, PermissionTimeout: -1})
	server := httptest.NewServer(h)
	defer http.DefaultClient.CloseIdleConnections()
	defer server.Close()
	token := h.Tokens.Issue(Grant{Session: "s"})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	body := `{"jsonrpc":"2.0","id":1,"method":"request_permission","params":{"session_token":"` + token + `","tool_name":"Bash"}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if resp, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", resp, err)
	}
	<-ended
	to := h.Remote("s")
	for range maxQueued {
		if err := to.write(message{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := Ping(t.Context(), to); code(err) != CodeLimit {
		t.Errorf("a message too many: %v", err)
	}
}
