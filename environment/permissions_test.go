package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func asks(step runnerscripts.ScenarioStep) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Ask: &step}
}

func runs(args ...string) runnerscripts.ScenarioStep {
	return asks(runnerscripts.ScenarioStep{Run: args})
}

// ends returns how the permission requests ended, in their order.
func ends(t *testing.T, events []runnerscripts.Event) (all []string) {
	t.Helper()
	for _, ev := range events {
		if ev.Type == runnerscripts.TypePermissionResolved {
			done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(fmt.Sprint(done.Kind, " ", done.Reason, " ", done.Scope, " ", done.Rule)))
		}
	}
	return all
}

func TestPermissionsDecideBeforeOnPermission(t *testing.T) {
	var asked []string
	env := create(t, Config{
		Agent: scenario(t, turn(
			runs("touch", "allowed"), runs("touch", "denied"), runs("sh", "-c", "touch denied"), runs("touch", "asked"),
			asks(runnerscripts.ScenarioStep{Write: write("src/f", "1")}), asks(runnerscripts.ScenarioStep{Write: write("f", "1")}),
		)),
		Permissions: permission.Rules{
			Mode: permission.ModeEdit, Allow: []string{"Bash(touch *)"}, Ask: []string{"Bash(touch asked)"}, Deny: []string{"Bash(touch denied)", "Write(src/**)"},
		},
		OnPermission: func(_ context.Context, req PermissionRequest) PermissionDecision {
			asked = append(asked, req.ToolCall.Title)
			return req.Allow()
		},
	})
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"allow_once rule once Bash(touch *)",
		"reject_once rule once Bash(touch denied)",
		"reject_once rule once Bash(touch denied)",
		"allow_once answered once",
		"reject_once rule once Write(src/**)",
		"allow_once mode once",
	}
	if got := ends(t, events); !slices.Equal(got, want) {
		t.Errorf("the requests ended as %q, want %q", got, want)
	}
	if len(asked) != 1 {
		t.Errorf("OnPermission decided about %q, want one", asked)
	}
	workspaceOf(t, env).mustBe(t, tree{"allowed": "", "asked": "", "f": "1"})
}

// Without OnPermission the rules decide alone.
func TestPermissionsNeedNoCallback(t *testing.T) {
	env := create(t, Config{
		Agent:       scenario(t, turn(runs("touch", "a"), runs("touch", "b"))),
		Permissions: permission.Rules{Allow: []string{"Bash(touch a)"}},
	})
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	if got, want := ends(t, events), []string{"allow_once rule once Bash(touch a)", "reject_once answered once"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the requests ended as %q, want %q, %v", got, want, err)
	}
	workspaceOf(t, env).mustBe(t, tree{"a": ""})
}

// An answer for the session holds for the same call, in the host: what the agent takes for the same
// could be what a rule denies.
func TestAnAnswerForTheSessionHoldsForTheSameCallOnly(t *testing.T) {
	always := func(_ context.Context, req PermissionRequest) PermissionDecision {
		kind := runnerscripts.AllowAlways
		if strings.Contains(string(req.ToolCall.RawInput), "no") {
			kind = runnerscripts.RejectAlways
		}
		return PermissionDecision{Kind: kind}
	}
	env := create(t, Config{
		Agent: scenario(t,
			turn(runs("touch", "a"), runs("touch", "a"), runs("touch", "no"), runs("touch", "no"), runs("touch", "denied")),
			turn(runs("touch", "a"), runs("touch", "b")),
		),
		Permissions: permission.Rules{Deny: []string{"Bash(touch denied)"}}, OnPermission: always,
	})
	var got []string
	for range 2 {
		events, err := collect(t.Context(), env, Query{Prompt: "x"})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ends(t, events)...)
	}
	want := []string{
		"allow_always answered session",
		"allow_once session session",
		"reject_always answered session",
		"reject_once session session",
		"reject_once rule once Bash(touch denied)",
		"allow_once session session",
		"allow_always answered session",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the requests ended as %q, want %q", got, want)
	}
	workspaceOf(t, env).mustBe(t, tree{"a": "", "b": ""})
}

func TestPermissionsRefuseWhatDoesNotAsk(t *testing.T) {
	rules := permission.Rules{Deny: []string{"Bash(git push *)"}}
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"a mode of the agent":        {Config{Agent: Agent{Name: "script", PermissionMode: "bypassPermissions"}, Permissions: rules}, "agent.permission_mode"},
		"a mode of the profile":      {Config{Agent: Agent{Name: "script"}, Profile: Profile{PermissionMode: "plan"}, Permissions: rules}, "profile.permission_mode"},
		"tools without asking":       {Config{Agent: Agent{Name: "script"}, Profile: Profile{AllowedTools: []string{"Edit"}}, Permissions: rules}, "profile.allowed_tools"},
		"a trusted workspace":        {Config{Agent: Agent{Name: "script", TrustWorkspace: true}, Permissions: rules}, "agent.trust_workspace"},
		"a malformed rule":           {Config{Agent: Agent{Name: "script"}, Permissions: permission.Rules{Allow: []string{"Bash("}}}, "permissions: allow[0]: rule"},
		"an agent that asks nothing": {Config{Agent: Agent{Name: "command", Command: []string{"x"}}, Permissions: rules}, "give credentials"},
		"a rule of a profile":        {Config{Agent: Agent{Name: "script"}, Profile: profileDenying("Bash(")}, "profile.permissions: deny[0]: rule"},
		"a mode beside limits":       {Config{Agent: Agent{Name: "script", PermissionMode: "plan"}, PermissionLimits: rules}, "agent.permission_mode"},
		"a mode and a profile":       {Config{Agent: Agent{Name: "script", PermissionMode: "plan"}, Profile: profileDenying("Bash")}, "agent.permission_mode"},
	} {
		if err := c.cfg.check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		cfg   Config
		holds bool
	}{
		"it asks over JSON-RPC": {Config{Agent: command(`{"rpc":true}`), Permissions: rules}, false},
		"it calls no model":     {Config{Agent: command(`{"type":"procedural"}`), Permissions: rules}, true},
		"limits of the program": {Config{Agent: command(`{}`), PermissionLimits: rules}, true},
	} {
		if err := c.cfg.check(); err != nil || c.cfg.holds() != c.holds {
			t.Errorf("%s: %v, held: %v", name, err, c.cfg.holds())
		}
	}
	env := create(t, Config{Agent: scenario(t), Permissions: rules})
	if err := env.SetMode(t.Context(), "bypassPermissions"); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "operation: permissions decide") {
		t.Errorf("the agent's mode was set: %v", err)
	}
}

// The rules that a user is advised to add allow the call, beside all others. Otherwise there is no advice.
func TestAllowRulesAllowTheRequest(t *testing.T) {
	const workspace = "/work/ws"
	script := Agent{Name: "script"}
	for name, c := range map[string]struct {
		cfg  Config
		call runnerscripts.ToolCall
		want string
	}{
		"no permissions":         {Config{Agent: script}, calls("Bash", `{"command":"cat a"}`), "Bash(cat *)"},
		"beside others":          {Config{Agent: script, Permissions: permission.Rules{Allow: []string{"Bash(go *)"}}}, calls("Bash", `{"command":"cat a"}`), "Bash(cat *)"},
		"a file":                 {Config{Agent: script}, calls("Write", `{"file_path":"/work/ws/src/a"}`), "Write(src/a)"},
		"a rule asks":            {Config{Agent: script, Permissions: permission.Rules{Ask: []string{"Bash(cat *)"}}}, calls("Bash", `{"command":"cat a"}`), ""},
		"a rule may deny":        {Config{Agent: script, Permissions: permission.Rules{Deny: []string{"Read(.env)"}}}, calls("Bash", `{"command":"cat .env"}`), ""},
		"the mode denies":        {Config{Agent: script, Permissions: permission.Rules{Mode: permission.ModePlan}}, calls("Write", `{"file_path":"a"}`), ""},
		"a limit asks":           {Config{Agent: script, PermissionLimits: permission.Rules{Allow: []string{"Bash(go *)"}}}, calls("Bash", `{"command":"cat a"}`), ""},
		"a question":             {Config{Agent: script}, calls("AskUserQuestion", `{}`), ""},
		"a mode that cannot ask": {Config{Agent: Agent{Name: "script", PermissionMode: "acceptEdits"}}, calls("Bash", `{"command":"cat a"}`), ""},
	} {
		if got := strings.Join(c.cfg.AllowRules(workspace, PermissionRequest{ToolCall: c.call}), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for path, want := range map[string]string{"a": "Write(a)", "/srv/files/a": ""} { // which may be in the workspace
		if got := strings.Join(Config{Agent: script}.AllowRules("", PermissionRequest{ToolCall: calls("Write", `{"file_path":"`+path+`"}`)}), " "); got != want {
			t.Errorf("%s in an unknown workspace: %q, want %q", path, got, want)
		}
	}
}

func calls(name, input string) runnerscripts.ToolCall {
	return runnerscripts.ToolCall{Name: name, RawInput: json.RawMessage(input)}
}

func command(config string) Agent {
	return Agent{Name: "command", Command: []string{"x"}, Config: json.RawMessage(config)}
}

func TestAConfigurationHasPermissions(t *testing.T) {
	cfg, err := ParseConfig([]byte("permissions: {mode: edit, allow: ['Bash(git *)'], ask: [WebFetch], deny: ['Bash(git push *)']}"))
	if err != nil || cfg.Permissions.Mode != permission.ModeEdit || len(cfg.Permissions.Allow)+len(cfg.Permissions.Ask)+len(cfg.Permissions.Deny) != 3 {
		t.Fatalf("%+v, %v", cfg.Permissions, err)
	}
	text, err := FormatConfig(cfg)
	if err != nil || !strings.Contains(string(text), `"deny":["Bash(git push *)"]`) {
		t.Errorf("%s, %v", text, err)
	}
	for _, bad := range []string{"permissions: {deny: ['Bash(git']}", "permissions: {mode: yolo}", "permissions: {denny: []}"} {
		if _, err := ParseConfig([]byte(bad)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "permissions") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func profileDenying(rule string) Profile {
	return Profile{Permissions: runnerscripts.ProfilePermissions{Deny: []string{rule}}}
}

// The rules of a profile and of the program narrow those of the configuration.
func TestAProfileNarrowsPermissions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte("permissions: {allow: ['Bash(touch *)'], deny: ['Bash(touch b)']}"), 0o600); err != nil {
		t.Fatal(err)
	}
	profile, err := LoadProfile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		rules, limits permission.Rules
		want          []string
	}{
		"alone":                 {want: []string{"allow_once rule once Bash(touch *)", "reject_once rule once Bash(touch b)", "allow_once rule once Bash(touch *)"}},
		"with a configuration":  {rules: permission.Rules{Allow: []string{"Bash(touch a)", "Bash(touch b)"}}, want: []string{"allow_once rule once Bash(touch a)", "reject_once rule once Bash(touch b)", "reject_once answered once"}},
		"with limits":           {limits: permission.Rules{Deny: []string{"Bash(touch c)"}}, want: []string{"allow_once rule once Bash(touch *)", "reject_once rule once Bash(touch b)", "reject_once rule once Bash(touch c)"}},
		"a mode does not widen": {rules: permission.Rules{Mode: permission.ModeAuto}, want: []string{"allow_once mode once", "reject_once rule once Bash(touch b)", "allow_once mode once"}},
	} {
		env := create(t, Config{
			Agent: scenario(t, turn(runs("touch", "a"), runs("touch", "b"), runs("touch", "c"))), Profile: profile,
			Permissions: row.rules, PermissionLimits: row.limits, OnPermission: RejectAll,
		})
		events, err := collect(t.Context(), env, Query{Prompt: "x"})
		if got := ends(t, events); err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q, %v", name, got, row.want, err)
		}
	}
}
