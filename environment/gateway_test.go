package environment

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
)

// hostKey is the key that only this machine has, as TEST_HOST_KEY. The literal is split, so that a search for the
// key does not find this file.
const hostKey = "real-" + "key-of-the-host-4711"

// twoCalls is a prompt for which an agent calls the model twice, and a tool in between.
const twoCalls = "please write-file `notes.txt`"

// keyedModel serves the scripted model to clients with the key, and returns its address.
func keyedModel(t *testing.T) string {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	target, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	return keyed(t, httputil.NewSingleHostReverseProxy(target))
}

// keyed serves a handler to clients with the key, and returns its address.
func keyed(t *testing.T, forward http.Handler) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("X-Goog-Api-Key"), hostKey) {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestCredentialsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Credential{"anthropic": {}, "b/d": {Env: "A"}, "soap": {Env: "A"}, "openai": {Env: "NO_SUCH_VARIABLE_HERE"}} {
		_, err := Create(t.Context(), Config{Sandbox: sandbox(t), Agent: Agent{Name: "script"}, Credentials: map[string]Credential{name: c}})
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTheGatewayIsWhereItWas checks that an agent that still runs in a kept sandbox uses the
// address and token of the program that created the sandbox.
func TestTheGatewayIsWhereItWas(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	cfg := Config{Sandbox: toKeep(box), Agent: Agent{Name: "script"}, Credentials: map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY"}}}
	env := create(t, cfg)
	t.Cleanup(func() { _ = Remove(context.WithoutCancel(t.Context()), box, env.ID()) }) // create's cleanup may have run before
	was := *env.gate.At
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Sandbox = box
	again, err := Attach(t.Context(), cfg, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if is := *again.gate.At; is.URL != was.URL || is.Token != was.Token || !maps.Equal(is.APIs, was.APIs) {
		t.Errorf("it is at %+v, and was at %+v", is, was)
	}
	beside, err := Attach(t.Context(), cfg, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	if beside.gate.At.URL == was.URL {
		t.Error("two programs serve one address")
	}
	if err := again.Primitive().Close(); err != nil {
		t.Error(err)
	}
}

// TestAShortKeyIsInNobodysWay has keys that users give to a local server, which takes any. Their
// letters are everywhere in the events.
func TestAShortKeyIsInNobodysWay(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"k", "x", "none", "test", "EMPTY", "1234567"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			env := create(t, Config{
				Sandbox: sandbox(t), Agent: asksForF(t), OnPermission: AllowAll,
				Credentials: map[string]Credential{"openai": {Command: []string{"echo", key}}},
			})
			events, err := collect(t.Context(), env, Query{Prompt: "x " + key})
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range events {
				if strings.Contains(string(ev.Payload), "[redacted]") {
					t.Errorf("%s %s", ev.Type, ev.Payload)
				}
			}
			workspaceOf(t, env).mustBe(t, tree{"f": "1"})
		})
	}
}
