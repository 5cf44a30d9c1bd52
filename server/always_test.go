package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/server"
)

// An answer of the scope always holds in later sessions of the caller, and for no other one.
func TestAnAnswerForAlwaysHoldsForItsCaller(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := newServer(t, func(cfg *server.Config) { cfg.Authenticate = byName })
	url, _ := listen(t, s)
	config := fmt.Sprintf(`{"config":{"agent":{"name":"script","config":{"turns":[{"steps":[{"ask":{"run":["touch","x"]}}]}]}},"sandbox":"local",
		"permissions":{"mode":"ask"},"workspace":[{"folder":%q}]}}`, t.TempDir())
	run := func(name string, answers bool) *runnerscripts.PermissionResolved {
		t.Helper()
		caller := as(server.RoleRunner, name)
		status, answer := ask(t, s, "POST", "/v1/sessions", config, caller...)
		var made sessionapi.Created
		if err := json.Unmarshal([]byte(answer), &made); err != nil || status != http.StatusOK {
			t.Fatalf("create: %d %s", status, answer)
		}
		lines := follow(t, url, made.ID, caller...)
		if status, answer := ask(t, s, "POST", sessionapi.SessionPath(made.ID, "prompts"), `{"text":"go"}`, caller...); status != http.StatusOK {
			t.Fatalf("prompt: %d %s", status, answer)
		}
		var asked string
		for lines.Scan() {
			var ev runnerscripts.Event
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok || json.Unmarshal([]byte(data), &ev) != nil {
				continue
			}
			switch v := ev.Value().(type) {
			case *runnerscripts.PermissionRequest:
				if asked = v.ID; !answers { // it could come before the earlier answer
					continue
				}
				_, _ = ask(t, s, "POST", sessionapi.SessionPath(made.ID, "permissions")+"/"+asked, `{"kind":"allow_once","scope":"always"}`, caller...)
			case *runnerscripts.PermissionResolved:
				return v
			}
		}
		t.Fatal(lines.Err())
		return nil
	}
	for _, row := range []struct{ name, reason string }{
		{"alice", runnerscripts.ReasonAnswered}, {"alice", runnerscripts.ReasonAlways}, {"bob", runnerscripts.ReasonAnswered}, {"alice", runnerscripts.ReasonAlways},
	} {
		if v := run(row.name, row.reason == runnerscripts.ReasonAnswered); v.Reason != row.reason || v.Scope != runnerscripts.ScopeAlways || v.By != row.name {
			t.Errorf("for %s it is resolved as %+v, want %s", row.name, v, row.reason)
		}
	}
	list, err := answers.List()
	if err != nil || len(list) != 2 || list[0].User != "alice" || list[1].User != "bob" {
		t.Fatalf("stored: %+v, %v", list, err)
	}
	// Each caller has its own, an admin all.
	one := func(caller []string, method, id string) string {
		t.Helper()
		status, answer := ask(t, s, method, "/v1/permissions"+id, "", caller...)
		if strings.Contains(answer, list[0].Key) {
			t.Errorf("%s: the answer has the key: %s", method, answer)
		}
		return fmt.Sprint(status, strings.Count(answer, `"alice","project"`), strings.Count(answer, `"bob","project"`))
	}
	alice, admin, ofBob := as(server.RoleUser, "alice"), as(server.RoleAdmin, "root"), "/"+list[1].ID
	for _, row := range []struct {
		caller           []string
		method, id, want string
	}{
		{alice, "GET", "", "200 1 0"},
		{admin, "GET", "", "200 1 1"},
		{alice, "DELETE", ofBob, "404 0 0"},
		{alice, "DELETE", "/" + list[0].ID, "204 0 0"},
		{alice, "DELETE", "/" + list[0].ID, "404 0 0"},
		{alice, "GET", "", "200 0 0"},
		{admin, "DELETE", ofBob, "204 0 0"},
		{admin, "GET", "", "200 0 0"},
	} {
		if got := one(row.caller, row.method, row.id); got != row.want {
			t.Errorf("%s %s: got %s, want %s", row.method, row.id, got, row.want)
		}
	}
	if v := run("alice", true); v.Reason != runnerscripts.ReasonAnswered {
		t.Errorf("a removed answer still holds: %+v", v)
	}
}
