package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/server/coordinator"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// A runner gets its token with client credentials, and its secret is nowhere in what it prints.
func TestARunnerWithClientCredentials(t *testing.T) {
	const secret, issued = "the-secret-of-the-runner", "the-token-that-was-issued"
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("RUNNER_SECRET", secret)
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, password, _ := r.BasicAuth()
		if id+password != "ci"+secret && r.FormValue("client_id")+r.FormValue("client_secret") != "ci"+secret || r.FormValue("audience") != "agents" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"`+issued+`","token_type":"Bearer","expires_in":3600}`)
	}))
	defer issuer.Close()
	c, err := coordinator.Open(t.Context(), coordinator.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	host, err := session.NewHost(session.HostConfig{Store: store.NewMemory(), Session: server.Sessions(nil)})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Config{Host: host, Coordinator: c, Authenticate: func(_ context.Context, token string) (server.Caller, error) {
		if token != issued {
			return server.Caller{}, fmt.Errorf("it is %q", token)
		}
		return server.Caller{Name: "ci", Role: server.RoleRunner}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, l) }()
	url := "http://" + l.Addr().String() + coordapi.Prefix
	config := filepath.Join(t.TempDir(), "runner.yaml")
	text := fmt.Sprintf(`
agent: script
sandbox: local
coordinator:
  url: %s
  profile: coding
  oauth2: {token_url: %s, client_id: ci, audience: agents, credential: {env: RUNNER_SECRET}}
`, url, issuer.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	var notes strings.Builder
	running, end := context.WithCancel(t.Context())
	status := make(chan int, 1)
	go func() {
		status <- Execute(running, strings.NewReader(""), in, &notes, []string{"runner", "--config", config, "-v"})
		_ = in.Close()
	}()
	id, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(id, "lnch_") {
		t.Errorf("the runner printed %q, %v", id, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/runners", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+issued)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(data), strings.TrimSpace(id)) || !strings.Contains(string(data), `"executor_profile":"coding"`) {
		t.Errorf("the runners are %s, %v", data, err)
	}
	end()
	if code := <-status; code != exitOK {
		t.Errorf("the runner exits with %d", code)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if text := notes.String(); strings.Contains(text, secret) || strings.Contains(text, issued) {
		t.Errorf("the secret is in %s", text)
	}
}
