package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sandboxapi"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	_ "github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/server"
)

// as returns the header of a caller: its token is its name, then its role.
func as(role server.Role, name string) []string {
	return []string{"Authorization", "Bearer " + name + "/" + string(role)}
}

func byName(_ context.Context, token string) (server.Caller, error) {
	name, role, ok := strings.Cut(token, "/")
	if !ok {
		return server.Caller{}, errors.New("it has expired")
	}
	return server.Caller{Name: name, Role: server.Role(role)}, nil
}

// forCallers returns a server for callers of all roles, whose sessions are in containers that nothing starts.
func forCallers(t *testing.T, change func(*server.Config)) *server.Server {
	t.Helper()
	return newServer(t, func(cfg *server.Config) {
		cfg.Authenticate, cfg.Configure, cfg.Sandboxes = byName, nil, true
		cfg.Defaults = environment.Config{Sandbox: environment.Sandbox{Type: "docker"}}
		if change != nil {
			change(cfg)
		}
	})
}

// The whole table: what a role may not is refused, before anything else is looked at.
func TestEachOperationHasItsRole(t *testing.T) {
	s := forCallers(t, nil)
	needs := func(method, path string) server.Role {
		switch {
		case path == "/v1/sandboxes/collect":
			return server.RoleAdmin
		case strings.HasPrefix(path, "/v1/sandboxes"):
			return server.RoleRunner
		}
		return server.RoleUser
	}
	_, answer := ask(t, s, "GET", "/v1/openapi.json", "")
	var described struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal([]byte(answer), &described); err != nil || len(described.Paths) < 20 {
		t.Fatalf("%d paths, %v", len(described.Paths), err)
	}
	rank := map[server.Role]int{server.RoleUser: 1, server.RoleRunner: 2, server.RoleAdmin: 3}
	parameter := regexp.MustCompile(`\{[a-z]+\}`)
	for path, methods := range described.Paths {
		for method := range methods {
			method, at := strings.ToUpper(method), parameter.ReplaceAllString(path, "none")
			need := needs(method, path)
			for role := range rank {
				status, answer := ask(t, s, method, at+"?type=local", "", as(role, "me")...)
				if allowed := rank[role] >= rank[need]; allowed == (status == http.StatusForbidden) {
					t.Errorf("%s %s as %s: %d %s, and it needs %s", method, path, role, status, answer, need)
				}
			}
		}
	}
}

func TestATokenThatAuthenticateRefuses(t *testing.T) {
	s := forCallers(t, nil)
	status, answer := ask(t, s, "GET", "/v1/sessions", "", "Authorization", "Bearer old")
	fails(t, "an old one", status, answer, "unauthorized", "it has expired")
	for _, wrong := range []string{"me/root", "me/", "/user"} {
		status, answer := ask(t, s, "GET", "/v1/sessions", "", "Authorization", "Bearer "+wrong)
		fails(t, wrong, status, answer, "internal", "log")
	}
	if status, answer := ask(t, s, "GET", "/v1/sessions", "", "Authorization", "Bearer "+token); status != http.StatusOK {
		t.Errorf("the token of Config: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "GET", "/v1/sessions", "", "Authorization", "Bearer /admin"); status != http.StatusOK {
		t.Errorf("an admin without a name: %d %s", status, answer)
	}
}

const forDocker = `{"config":{"agent":"script"},"metadata":{"owner":"bob","ticket":"7"}}`

func made(t *testing.T, h http.Handler, headers ...string) string {
	t.Helper()
	status, answer := ask(t, h, "POST", "/v1/sessions", forDocker, headers...)
	var id sessionapi.Created
	if err := json.Unmarshal([]byte(answer), &id); err != nil || status != http.StatusOK {
		t.Fatalf("create: %d %s", status, answer)
	}
	return id.ID
}

func TestACallerSeesOnlyItsOwnSessions(t *testing.T) {
	s := forCallers(t, nil)
	key := []string{sessionapi.KeyHeader, "one"}
	alices := made(t, s, append(as(server.RoleUser, "alice"), key...)...)
	bobs := made(t, s, append(as(server.RoleRunner, "bob"), key...)...)
	if alices == bobs {
		t.Error("the answer of another caller is given for the same key")
	}
	seen := func(headers ...string) string {
		_, answer := ask(t, s, "GET", "/v1/sessions?metadata=ticket=7", "", headers...)
		return fmt.Sprint(strings.Contains(answer, alices), strings.Contains(answer, bobs))
	}
	if a, b, all := seen(as(server.RoleUser, "alice")...), seen(as(server.RoleRunner, "bob")...), seen(as(server.RoleAdmin, "root")...); a != "true false" || b != "false true" || all != "true true" {
		t.Errorf("listed: alice %s, bob %s, admin %s", a, b, all)
	}
	if _, answer := ask(t, s, "GET", "/v1/sessions?metadata=owner=alice", "", as(server.RoleUser, "bob")...); strings.Contains(answer, alices) {
		t.Errorf("bob asks for those of alice, and gets %s", answer)
	}
	for _, c := range []struct{ method, below, body string }{
		{"GET", "", ""},
		{"POST", "/prompts", `{"text":"x"}`},
		{"GET", "/file?path=f", ""},
		{"PUT", "/file?path=f", "x"},
		{"POST", "/fork", `{"n":1}`},
		{"PATCH", "/options", `{}`},
		{"POST", "/permissions/p", `{"kind":"allow_once"}`},
		{"DELETE", "", ""},
		{"GET", "/events", ""},
	} {
		if c.below == "/events" && t.Failed() {
			t.FailNow() // the events of an open session do not end
		}
		path := "/v1/sessions/" + alices + c.below
		status, answer := ask(t, s, c.method, path, c.body, as(server.RoleRunner, "bob")...)
		fails(t, c.method+" "+c.below, status, answer, "session_not_found", alices)
	}
	if status, answer := ask(t, s, "GET", "/v1/sessions/"+alices, "", as(server.RoleUser, "alice")...); status != http.StatusOK {
		t.Errorf("her own: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "DELETE", "/v1/sessions/"+alices, "", as(server.RoleAdmin, "root")...); status != http.StatusNoContent {
		t.Errorf("an admin: %d %s", status, answer)
	}
}

func TestWhatAUserMayNotChoose(t *testing.T) {
	s := forCallers(t, nil)
	for names, config := range map[string]string{
		"sandbox":       `{"agent":"script","sandbox":"local"}`,
		"credentials":   `{"agent":"script","credentials":{"openai":{"env":"HOME"}}}`,
		"budget":        `{"agent":"script","budget":{"query":{"time":"9h"}}}`,
		"profile":       `{"agent":"script","profile":"/etc/shadow"}`,
		"scripts":       `{"agent":"script","scripts":{"setup_session":["sh"]}}`,
		"workspace[0] ": `{"agent":"script","\u0077orkspace":[{"folder":"/etc"}]}`,
		"workspace[0]":  `{"agent":"script","workspace":[{"folder":"/etc"}]}`,
		"workspace[1]":  `{"agent":"script","workspace":[{"files":[{"path":"a","content":"b"}]},{"git":"/srv/private"}]}`,
		"workspace[2]":  `{"agent":"script","workspace":[{"files":[{"path":"a","content":"b"}]},{"git":"https://example.com/x.git"},{"tar":"/etc/x.tar"}]}`,
	} {
		status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":`+config+`}`, as(server.RoleUser, "alice")...)
		fails(t, config, status, answer, "forbidden", strings.TrimSpace(names))
		if names != "sandbox" { // others may, and some of these are wrong otherwise
			continue
		}
		if status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":`+config+`}`, as(server.RoleRunner, "bob")...); status != http.StatusOK {
			t.Errorf("a runner: %d %s", status, answer)
		}
	}
	status, answer := ask(t, s, "POST", "/v1/sessions", `{"config":{"agent":"script"},"max_session_size":-1}`, as(server.RoleUser, "alice")...)
	fails(t, "a size", status, answer, "forbidden", "max_session_size")
	status, answer = ask(t, s, "POST", "/v1/sessions", `{"config":{"agent":"script"},"metadata":{"delegated_by":"x"}}`, as(server.RoleRunner, "bob")...)
	fails(t, "the agent that has started it", status, answer, "invalid", "delegated_by")
	s = forCallers(t, func(cfg *server.Config) { cfg.Defaults.Sandbox.Type = "local" })
	status, answer = ask(t, s, "POST", "/v1/sessions", `{"config":{"agent":"script"}}`, as(server.RoleUser, "alice")...)
	fails(t, "the server's own machine", status, answer, "forbidden", "does not isolate")
}

func TestTheLimitsOfACaller(t *testing.T) {
	s := forCallers(t, func(cfg *server.Config) { cfg.MaxSessions = 2 })
	alice, bob := as(server.RoleUser, "alice"), as(server.RoleUser, "bob")
	made(t, s, bob...)
	id := made(t, s, alice...)
	made(t, s, alice...)
	once := append(slices.Clone(alice), sessionapi.KeyHeader, "one")
	status, answer := ask(t, s, "POST", "/v1/sessions", forDocker, once...)
	fails(t, "a third session", status, answer, "too_many", "2 sessions")
	status, answer = ask(t, s, "POST", "/v1/sessions/"+id+"/fork", `{"n":1}`, alice...)
	fails(t, "a copy", status, answer, "too_many", "2 sessions")
	if status, answer := ask(t, s, "DELETE", "/v1/sessions/"+id, "", alice...); status != http.StatusNoContent {
		t.Errorf("remove one: %d %s", status, answer)
	}
	if status, answer := ask(t, s, "POST", "/v1/sessions", forDocker, once...); status != http.StatusOK {
		t.Errorf("the third session, sent again: %d %s", status, answer)
	}
	s = forCallers(t, nil)
	s.SetRate(3)
	for i := range 5 {
		status, answer = ask(t, s, "GET", "/v1/sessions", "", alice...)
		if i < 3 && status != http.StatusOK {
			t.Errorf("request %d: %d %s", i, status, answer)
		}
	}
	fails(t, "many requests", status, answer, "too_many", "a second")
	if status, _ := ask(t, s, "GET", "/v1/sessions", "", bob...); status != http.StatusOK {
		t.Error("another caller is limited, too")
	}
}

func TestARunnerHasItsOwnSandboxes(t *testing.T) {
	s := forCallers(t, func(cfg *server.Config) {
		cfg.Defaults.Sandbox = environment.Sandbox{Type: "local", Provider: &local.Provider{Root: t.TempDir()}}
	})
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	alice, bob := as(server.RoleRunner, "alice"), as(server.RoleRunner, "bob")
	status, answer := ask(t, s, "POST", "/v1/sandboxes", `{"sandbox":"local"}`, alice...)
	var box sandboxapi.Sandbox
	if err := json.Unmarshal([]byte(answer), &box); err != nil || status != http.StatusOK {
		t.Fatalf("create: %d %s", status, answer)
	}
	for _, c := range []struct{ method, below string }{{"GET", ""}, {"GET", "/usage"}, {"GET", "/history"}, {"GET", "/connect"}, {"POST", "/pause"}, {"DELETE", ""}} {
		status, answer := ask(t, s, c.method, sandboxapi.Of(box.ID)+c.below+"?type=local", "", append(bob, "Upgrade", "websocket")...)
		fails(t, c.method+" "+c.below, status, answer, "not_found", "no sandbox")
	}
	for name, c := range map[string]struct {
		headers []string
		listed  bool
	}{"its own": {alice, true}, "another's": {bob, false}, "an admin": {as(server.RoleAdmin, "root"), true}} {
		_, answer := ask(t, s, "GET", "/v1/sandboxes?type=local", "", c.headers...)
		if strings.Contains(answer, box.ID) != c.listed {
			t.Errorf("%s: listed are %s", name, answer)
		}
	}
	if status, answer := ask(t, s, "DELETE", sandboxapi.Of(box.ID), "", alice...); status != http.StatusNoContent {
		t.Errorf("its own: %d %s", status, answer)
	}
}
