package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// audited returns the text and the entries of the audit log.
func audited(t *testing.T) (text string, all []audit.Entry) {
	t.Helper()
	name, err := audit.Path()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, e)
	}
	return string(data), all
}

func TestTheAuditLogHasEachDecision(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	const secret = "hunter2-of-the-agent"
	cfg := Config{
		Agent: scenario(t, turn(
			runs("touch", "a"), runs("touch", "denied"), runs("touch", secret), runs("touch", "late"), asks(runnerscripts.ScenarioStep{Write: write("src/f", "1")}),
		)),
		Permissions: permission.Rules{Allow: []string{"Bash(touch a)"}, Deny: []string{"Bash(touch denied)"}, Mode: permission.ModeEdit},
		OnPermission: func(ctx context.Context, req PermissionRequest) PermissionDecision {
			if strings.Contains(string(req.ToolCall.RawInput), "late") {
				return PermissionDecision{}
			}
			return PermissionDecision{Kind: runnerscripts.AllowOnce, By: "ann"}
		},
	}
	cfg.Agent.Env = map[string]string{"API_TOKEN": secret}
	cfg.PermissionTimeout = time.Second
	env := create(t, cfg)
	events, err := collect(t.Context(), env, Query{Prompt: "x", ID: "q"})
	if err != nil {
		t.Fatal(err)
	}
	text, all := audited(t)
	var got []string
	for _, e := range all {
		if e.Session != env.SessionID() || e.Sandbox != env.ID() || e.Query != "q" || e.Time.IsZero() {
			t.Errorf("it lacks something: %+v", e)
		}
		got = append(got, strings.Join([]string{e.Event, e.Tool, e.Call, e.Decision, e.Reason, e.Rule, e.By, e.Scope}, " "))
	}
	want := []string{
		`permission Bash ["touch","a"] allow rule Bash(touch a)  once`,
		`permission Bash ["touch","denied"] deny rule Bash(touch denied)  once`,
		`permission Bash ["touch","[redacted]"] allow answered  ann once`,
		`permission Bash ["touch","late"] deny timeout   once`,
		"permission Write src/f allow mode   once",
	}
	if !slices.Equal(got, want) || strings.Contains(text, secret) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var by []string
	for _, ev := range events {
		if v, ok := ev.Value().(*runnerscripts.PermissionResolved); ok && v.By != "" {
			by = append(by, v.By)
		}
	}
	if !slices.Equal(by, []string{"ann"}) {
		t.Errorf("permission_resolved names %q", by)
	}
}

// The keys and tokens of the gateway are secrets of the log and of stored answers too: in a held call, also where it is
// cut, and in an input that the user sets.
func TestSecretsOfHeldCallsAreInNeitherTheAuditLogNorStoredAnswers(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := Config{
		Agent:     scenario(t, turn(runs("touch", "a"))),
		Workspace: []Source{{Folder: &Folder{Path: t.TempDir()}}}, Permissions: permission.Rules{Deny: []string{"Bash(rm *)"}},
		Credentials: map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY", URL: keyed(t, http.NotFoundHandler())}},
	}
	const own = "hunter2-of-the-agent"
	cfg.Agent.Env = map[string]string{"API_TOKEN": own}
	var env *Environment
	cfg.OnPermission = func(ctx context.Context, req PermissionRequest) PermissionDecision {
		if strings.HasPrefix(req.ID, "call-") { // it is held
			return PermissionDecision{Kind: runnerscripts.AllowOnce, Scope: runnerscripts.ScopeAlways}
		}
		for _, args := range []string{own, hostKey, env.gate.At.Token, strings.Repeat("x", 1<<10-8) + hostKey, strings.Repeat("x", 4<<10-20) + hostKey} {
			if refusal := env.queries.Hold(ctx, "Bash", json.RawMessage(`{"command":"deploy `+args+`"}`)); refusal != "" {
				t.Error(refusal)
			}
		}
		return PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"command":"touch ` + hostKey + `"}`)}
	}
	env = create(t, cfg)
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if err != nil {
		t.Fatal(err)
	}
	text, all := audited(t)
	stored, err := answers.List()
	if err != nil || len(all) != 6 || len(stored) != 3 || stored[0].Call != "deploy [redacted]" {
		t.Errorf("%d entries, stored: %+v, %v", len(all), stored, err)
	}
	for _, a := range stored {
		text += a.Call
	}
	for _, ev := range events {
		text += string(ev.Payload)
	}
	for _, secret := range []string{own, hostKey[:8], env.gate.At.Token} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
}

// Without permissions the log has what OnPermission decides, with the input that it sets. With them, that input may not
// be what a rule denies.
func TestAChangedInputIsJudgedAndAudited(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := Config{
		Agent: scenario(t, turn(runs("touch", "a"))),
		OnPermission: func(context.Context, PermissionRequest) PermissionDecision {
			return PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"command":"touch b"}`)}
		},
	}
	if _, err := collect(t.Context(), create(t, cfg), Query{Prompt: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, all := audited(t); len(all) != 1 || all[0].Call != "touch b" {
		t.Errorf("the log has %+v", all)
	}
	cfg.Permissions = permission.Rules{Deny: []string{"Bash(touch b)"}}
	cfg.OnPermission = AnswerLater
	env := create(t, cfg)
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		if req, ok := ev.Value().(*runnerscripts.PermissionRequest); ok {
			err := env.Respond(t.Context(), req.ID, PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"command":"touch b"}`)})
			if err == nil || !strings.Contains(err.Error(), fs.ErrInvalid.Error()) || !strings.Contains(err.Error(), "Bash(touch b)") {
				t.Errorf("got %v", err)
			}
			if err := env.Respond(t.Context(), req.ID, req.Reject("no")); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTheAuditLogHasKeysAndRefusals(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := withPrograms(t)
	cfg.Agent, cfg.Sandbox.AllowHosts = Agent{Name: "script"}, []string{}
	cfg.Credentials = map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY", URL: keyed(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "{}")
	}))}}
	env := create(t, cfg)
	for _, command := range []string{
		"curl -sS -H 'x-api-key: " + env.gate.At.Token + "' -d '{\"model\":\"m\",\"messages\":[]}' " + env.gate.At.URL + "/anthropic/v1/messages",
		"curl -sS -H 'x-api-key: wrong' -d '{}' " + env.gate.At.URL + "/anthropic/v1/messages",
		"curl -sS http://files.agentenv.test/",
	} {
		if _, err := env.Exec(t.Context(), "sh", "-c", command); err != nil {
			t.Fatal(err)
		}
	}
	text, all := audited(t)
	if len(all) != 2 || all[0].Event != audit.Credential || all[0].Credential != "anthropic" || all[0].Request != "POST /v1/messages" ||
		all[1].Event != audit.Refused || all[1].Host != "files.agentenv.test:80" || !strings.Contains(all[1].Reason, "allow_hosts") {
		t.Errorf("the log has %+v", all)
	}
	if strings.Contains(text, hostKey) || strings.Contains(text, env.gate.At.Token) {
		t.Error("the log has a secret")
	}
}

// An agent continues without the audit log, and the program's log says so.
func TestAnAuditLogThatCannotBeWritten(t *testing.T) {
	state := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", state)
	var out strings.Builder
	env := create(t, Config{
		Agent: scenario(t, turn(runs("touch", "a"), runs("touch", "b"))), OnPermission: AllowAll,
		Logger: hclog.New(&hclog.LoggerOptions{Output: &out}),
	})
	if _, err := collect(t.Context(), env, Query{Prompt: "x"}); err != nil {
		t.Fatal(err)
	}
	workspaceOf(t, env).mustBe(t, tree{"a": "", "b": ""})
	if n := strings.Count(out.String(), "audit log"); n != 1 {
		t.Errorf("it was said %d times: %s", n, out.String())
	}
}
