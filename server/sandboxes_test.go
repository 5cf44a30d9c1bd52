package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sandboxapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/server"
)

// forSandboxes returns a server with local sandboxes.
func forSandboxes(t *testing.T) *server.Server {
	t.Helper()
	root := t.TempDir()
	s := newServer(t, func(cfg *server.Config) {
		cfg.Sandboxes = true
		cfg.Defaults = environment.Config{Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: root}}}
	})
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	return s
}

func newSandbox(t *testing.T, s *server.Server, body string) string {
	t.Helper()
	status, answer := ask(t, s, "POST", "/v1/sandboxes", body)
	var made sandboxapi.Sandbox
	if err := json.Unmarshal([]byte(answer), &made); err != nil || status != http.StatusOK || made.Type != "local" {
		t.Fatalf("create: %d %s", status, answer)
	}
	return made.ID
}

// A client that dies between the creation and its connection leaves a sandbox that nobody knows, also a kept one.
func TestASandboxThatNoClientHasMetEnds(t *testing.T) {
	s := forSandboxes(t)
	id := newSandbox(t, s, `{"sandbox": {"keep": true, "grace": "1ms"}}`)
	status, answer := ask(t, s, "POST", "/v1/sandboxes/collect?type=local", `{"no_grace": true}`)
	if status != http.StatusOK || strings.Contains(answer, id) {
		t.Errorf("its client may be about to connect, and GC has removed it: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "GET", sandboxapi.Of(id, "connect"), ""); status != http.StatusBadRequest {
		t.Errorf("without a WebSocket: %d %s", status, answer)
	}
	status, answer = ask(t, s, "GET", sandboxapi.Of(id, "connect"), "", "Upgrade", "websocket", "Origin", "http://127.0.0.1:8377")
	fails(t, "a page", status, answer, "forbidden", "page")
	s.SetConnect(time.Millisecond)
	id = newSandbox(t, s, `{"sandbox": {"keep": true, "grace": "1ms"}}`)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		if _, answer := ask(t, s, "GET", "/v1/sandboxes?type=local", ""); !strings.Contains(answer, id) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it is still there")
		}
	}
}

// What a client asks for with settings of its own is found with these settings again.
func TestASandboxHasItsOwnSettings(t *testing.T) {
	s := forSandboxes(t)
	id := newSandbox(t, s, `{"sandbox": {"type": "local", "local": {"root": "`+t.TempDir()+`"}}}`)
	if status, answer := ask(t, s, "GET", sandboxapi.Of(id, "usage"), ""); status != http.StatusOK {
		t.Errorf("usage: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "DELETE", sandboxapi.Of(id), ""); status != http.StatusNoContent {
		t.Errorf("remove: %d %s", status, answer)
	}
	status, answer := ask(t, s, "DELETE", sandboxapi.Of(id), "")
	fails(t, "removed once more", status, answer, "not_found", "")
}

func TestAServerWithoutSandboxesOfItsOwn(t *testing.T) {
	s := newServer(t, nil)
	status, answer := ask(t, s, "POST", "/v1/sandboxes", `{"sandbox": "local"}`)
	fails(t, "create", status, answer, "not_found", "no such path")
}

// weak is a type whose first handle of a sandbox can lose it, as one whose connection breaks.
type weak struct{ local.Provider }

type weakHandle struct {
	primitives.EnvironmentPrimitive
	lost *atomic.Bool
}

var handleLost atomic.Bool

func (w *weak) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	s, err := w.Provider.Create(ctx, spec)
	return &weakHandle{s, &handleLost}, err
}

func (h *weakHandle) Poll(ctx context.Context) (primitives.State, error) {
	if h.lost.Load() {
		return primitives.State{Status: primitives.StatusLost}, nil
	}
	return h.EnvironmentPrimitive.Poll(ctx)
}

var registerWeak = sync.OnceFunc(func() { primitives.Register("weak", func() primitives.Provider { return new(weak) }) })

func TestAHandleThatHasLostItsSandboxIsReplaced(t *testing.T) {
	registerWeak()
	root := t.TempDir()
	s := newServer(t, func(cfg *server.Config) {
		cfg.Sandboxes = true
		cfg.Defaults = environment.Config{Sandbox: environment.Sandbox{Type: "weak", Provider: &weak{local.Provider{Root: root}}}}
	})
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	_, answer := ask(t, s, "POST", "/v1/sandboxes", `{"sandbox": {}}`)
	var made sandboxapi.Sandbox
	if err := json.Unmarshal([]byte(answer), &made); err != nil || made.ID == "" {
		t.Fatal(answer)
	}
	usage := sandboxapi.Of(made.ID, "usage") + "?type=weak"
	if status, answer := ask(t, s, "GET", usage, ""); status != http.StatusNotImplemented {
		t.Fatalf("the first handle measures nothing: %d %s", status, answer)
	}
	handleLost.Store(true)
	t.Cleanup(func() { handleLost.Store(false) })
	if status, answer := ask(t, s, "GET", usage, ""); status != http.StatusOK {
		t.Errorf("another handle does: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "DELETE", sandboxapi.Of(made.ID), ""); status != http.StatusNoContent {
		t.Errorf("remove: %d %s", status, answer)
	}
}
