package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestTheGatewayFetchesTokens checks that OAuth2 of a configuration reaches the coordinator.
func TestTheGatewayFetchesTokens(t *testing.T) {
	var fetched atomic.Int64
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		if r.FormValue("audience") != "https://api" {
			t.Errorf("it asks for %v", r.Form)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"an-access-token","expires_in":3600}`)
	}))
	defer issuer.Close()
	handler, got := recorder(200, "{}")
	_, address, _ := serveRunner(t, handler, func(c *Coordinator) {
		c.OAuth2, c.Credential = &OAuth2{TokenURL: issuer.URL, ClientID: "runner", Credential: c.Credential, Audience: "https://api"}, KeySource{}
	})
	for range 2 {
		ask(t, request(t, "GET", address+"/sessions/ses_own", ""))
		if a := <-got; a.header.Get("Authorization") != "Bearer an-access-token" {
			t.Errorf("the authorization is %q", a.header.Get("Authorization"))
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("it has fetched %d tokens", n)
	}
}

func TestCoordinatorsThatCannotBe(t *testing.T) {
	t.Setenv("TEST_COORDINATOR_KEY", coordinatorKey)
	key := KeySource{Env: "TEST_COORDINATOR_KEY"}
	good := Coordinator{URL: "http://c", Profile: "p", Credential: key}
	for want, change := range map[string]func(*Coordinator){
		"coordinator.url":                 func(c *Coordinator) { c.URL = "c" },
		"coordinator.profile":             func(c *Coordinator) { c.Profile = "" },
		"coordinator.session_id":          func(c *Coordinator) { c.SessionID = "a/b" },
		"coordinator.credential: it has":  func(c *Coordinator) { c.Credential.Store = "x" },
		"coordinator.credential: the var": func(c *Coordinator) { c.Credential.Env = "NO_SUCH_VARIABLE_HERE" },
		"both credential and oauth2":      func(c *Coordinator) { c.OAuth2 = &OAuth2{} },
		"oauth2.token_url":                func(c *Coordinator) { c.OAuth2, c.Credential = &OAuth2{}, KeySource{} },
		"oauth2.client_id":                func(c *Coordinator) { c.OAuth2, c.Credential = &OAuth2{TokenURL: "http://c"}, KeySource{} },
		"oauth2.credential": func(c *Coordinator) {
			c.OAuth2, c.Credential = &OAuth2{TokenURL: "http://c", ClientID: "c"}, KeySource{}
		},
		"coordinator.allow[1]": func(c *Coordinator) { c.Allow = []string{"GET /a", "GET /a/../b"} },
	} {
		c := good
		change(&c)
		if _, err := c.Open(t.Context(), "s"); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), coordinatorKey) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := (Coordinator{}).Check(); err != nil {
		t.Error(err)
	}
	o, err := good.Open(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Coordinator: o, Upstreams: map[string]Upstream{"coordinator": {API: "openai", Key: "k"}}}); !errors.Is(err, ErrConfig) {
		t.Errorf("two of one name: %v", err)
	}
}

// A server makes a new key when it starts again: a key of a file is read again when it is refused, and the request is sent
// again with its body. Nobody sees the new key either.
func TestAKeyOfAFileIsReadAgain(t *testing.T) {
	const renewed = "the-key-of-the-next-start-0123"
	var accepted atomic.Value
	accepted.Store(coordinatorKey)
	handler, got := recorder(200, `{"said":"`+renewed+`"}`)
	file := filepath.Join(t.TempDir(), "key")
	write := func(key string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(coordinatorKey)
	var refused atomic.Int64
	_, address, _ := serveRunner(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accepted.Load().(string) {
			refused.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler(w, r)
	}, func(c *Coordinator) { c.Credential = KeySource{File: file} })
	accepted.Store(renewed)
	const event = `{"session_id":"ses_own","event_type":"message"}`
	if status, _ := ask(t, request(t, "POST", address+"/events", event)); status != http.StatusUnauthorized || refused.Load() != 1 {
		t.Errorf("with the old key the answer is %d, after %d attempts", status, refused.Load())
	}
	write(renewed)
	for range 2 {
		if status, answer := ask(t, request(t, "POST", address+"/events", event)); status != 200 || strings.Contains(answer, renewed) {
			t.Errorf("with the new key the answer is %d %s", status, answer)
		} else if a := <-got; a.body != event {
			t.Errorf("it was sent with %q", a.body)
		}
	}
	if n := refused.Load(); n != 2 {
		t.Errorf("%d requests had the old key", n)
	}
	write("")
	accepted.Store(coordinatorKey)
	if status, _ := ask(t, request(t, "POST", address+"/events", event)); status != http.StatusUnauthorized {
		t.Errorf("without a key the answer is %d", status)
	}
}
