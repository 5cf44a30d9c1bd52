package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// coordinating returns a server with a coordinator, for callers of all roles.
func coordinating(t *testing.T) *server.Server {
	t.Helper()
	c, err := coordinator.Open(context.WithoutCancel(t.Context()), coordinator.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return forCallers(t, func(cfg *server.Config) { cfg.Coordinator = c })
}

// claude-agent-orchestrator computes roles and enforces none.
func TestEachOperationOfTheCoordinatorHasItsRole(t *testing.T) {
	s := coordinating(t)
	_, answer := ask(t, s, "GET", "/v1/openapi.json", "")
	var described struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal([]byte(answer), &described); err != nil {
		t.Fatal(err)
	}
	s.Drain() // which ends streams and polls
	ofRunners := regexp.MustCompile(`^[A-Z]+ /coordinator/runner|^POST .*/(events|bind)$|^PATCH`)
	parameter, n := regexp.MustCompile(`\{[a-z]+\}`), 0
	for path, methods := range described.Paths {
		if !strings.HasPrefix(path, coordapi.Prefix) {
			continue
		}
		for method := range methods {
			n++
			method := strings.ToUpper(method)
			for role, most := range map[server.Role]bool{server.RoleUser: false, server.RoleRunner: true, server.RoleAdmin: true} {
				status, answer := ask(t, s, method, parameter.ReplaceAllString(path, "none"), "", as(role, "me")...)
				if allowed := most || !ofRunners.MatchString(method+" "+path); allowed == (status == http.StatusForbidden) {
					t.Errorf("%s %s as %s: %d %s", method, path, role, status, answer)
				}
			}
			if status, _ := ask(t, s, method, parameter.ReplaceAllString(path, "none"), "", "Authorization", ""); status != http.StatusUnauthorized {
				t.Errorf("%s %s without a token: %d", method, path, status)
			}
		}
	}
	if n != 27 {
		t.Errorf("there are %d operations", n)
	}
}

// Also the errors of the server itself have the form that clients of a coordinator read.
func TestAPathThatTheCoordinatorDoesNotHave(t *testing.T) {
	s := coordinating(t)
	for request, want := range map[string]int{"GET /coordinator/nothing": 404, "DELETE /coordinator/runs": 405} {
		method, path, _ := strings.Cut(request, " ")
		status, answer := ask(t, s, method, path, "", as(server.RoleAdmin, "me")...)
		var said struct{ Detail string }
		if err := json.Unmarshal([]byte(answer), &said); err != nil || status != want || !strings.Contains(said.Detail, path) {
			t.Errorf("%s: %d %s", request, status, answer)
		}
	}
}

func TestARunOfAUserIsTakenByARunnerAndSeenByNoOther(t *testing.T) {
	s := coordinating(t)
	user, runner := as(server.RoleUser, "alice"), as(server.RoleRunner, "ci")
	must := func(method, path, body string, to any, headers []string) {
		t.Helper()
		status, answer := ask(t, s, method, coordapi.Prefix+path, body, headers...)
		if err := json.Unmarshal([]byte(answer), to); err != nil || status/100 != 2 {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
	}
	var registered coordapi.Registered
	must("POST", "/runner/register", `{"hostname":"h","executor_profile":"coding"}`, &registered, runner)
	var asked coordapi.Run
	must("POST", "/runs", `{"type":"start_session","prompt":"x"}`, &asked, user)
	var polled coordapi.Polled
	must("GET", "/runner/runs?runner_id="+registered.RunnerID, "", &polled, runner)
	if polled.Run == nil || polled.Run.ID != asked.ID {
		t.Errorf("the runner got %+v", polled)
	}
	var list struct{ Sessions []coordapi.Session }
	if must("GET", "/sessions", "", &list, user); len(list.Sessions) != 1 || list.Sessions[0].Owner != "alice" {
		t.Errorf("alice sees %+v", list)
	}
	if must("GET", "/sessions", "", &list, as(server.RoleUser, "bob")); len(list.Sessions) != 0 {
		t.Errorf("bob sees %+v", list)
	}
}
