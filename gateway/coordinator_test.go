package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
