package environment

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// An agent without a way to ask is held: the calls in the model's answers are decided about before it gets them.
func TestAnAgentThatAsksNothingIsHeld(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	cfg := otherAgents()[1].local(t, keyedModel(t))
	cfg.Permissions = permission.Rules{Allow: []string{"Write(a.txt)"}, Deny: []string{"Write(denied.txt)"}}
	cfg.OnPermission = func(_ context.Context, req PermissionRequest) PermissionDecision {
		switch {
		case strings.Contains(string(req.ToolCall.RawInput), "always.txt"):
			return PermissionDecision{Kind: runnerscripts.AllowAlways}
		case strings.Contains(string(req.ToolCall.RawInput), "no.txt"):
			return req.Reject("Use another name.")
		case strings.Contains(string(req.ToolCall.RawInput), "changed.txt"):
			return PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: []byte(`{"file_path":"other.txt"}`)}
		}
		return PermissionDecision{Kind: runnerscripts.AllowOnce, By: "ann"}
	}
	env := create(t, cfg)
	for _, row := range []struct{ file, end, says string }{
		{"a.txt", "allow_once rule once Write(a.txt)", "The file is written."},
		{"denied.txt", "reject_once rule once Write(denied.txt)", "The call of Write was refused. Denied: the rule deny: Write(denied.txt)."},
		{"asked.txt", "allow_once answered once", "The file is written."},
		{"no.txt", "reject_once answered once", "refused. Use another name."},
		{"changed.txt", "allow_once answered once", "cannot be changed"},
		{"always.txt", "allow_always answered session", "The file is written."},
		{"always.txt", "allow_once session session", "The file is written."},
	} {
		events, err := collect(t.Context(), env, Query{Prompt: "please write-file `" + row.file + "`"})
		if err != nil {
			t.Fatalf("%s: %v", row.file, err)
		}
		if got := ends(t, events); !slices.Equal(got, []string{row.end}) {
			t.Errorf("%s: it ended as %q, want %q", row.file, got, row.end)
		}
		if said := conversation(t, events); !strings.Contains(said, row.says) {
			t.Errorf("%s: the agent says %s", row.file, said)
		}
	}
	names := keysOf(workspaceOf(t, env))
	slices.Sort(names)
	if want := []string{"a.txt", "always.txt", "asked.txt", "executor.mjs"}; !slices.Equal(names, want) {
		t.Errorf("the workspace has %q, want %q", names, want)
	}
	_, all := audited(t)
	all = slices.DeleteFunc(all, func(e audit.Entry) bool { return e.Event != audit.Permission })
	if len(all) != 7 || all[1].Decision != "deny" || all[1].Call != "denied.txt" || all[2].By != "ann" {
		t.Errorf("the audit log has %+v", all)
	}
}

// geminiOverACP returns a configuration of the Gemini CLI as any agent of the Agent Client Protocol.
func geminiOverACP(t *testing.T, api string) Config {
	t.Helper()
	cfg := keyedAgents()[2].local(t, api)
	cfg.Agent.Name, cfg.Agent.Model, cfg.Agent.PermissionMode = "acp", "", ""
	cfg.Agent.Command = append(cfg.Agent.Command, "--acp", "--model", "gemini-2.5-pro")
	cfg.Agent.Config = []byte(`{"auth_method":"gemini-api-key"}`)
	return cfg
}

// An agent over ACP may run what it does not ask about. What a rule denies it does not get, and what it asks about is
// asked once.
func TestAnACPAgentGetsNoCallThatARuleDenies(t *testing.T) {
	t.Parallel()
	cfg := geminiOverACP(t, keyedModel(t))
	cfg.OnPermission = func(_ context.Context, req PermissionRequest) PermissionDecision { return req.Allow() } // also one that may be denied
	cfg.Permissions = permission.Rules{Deny: []string{"Bash(touch denied)", "Read(secret.txt)"}}
	cfg.Workspace = []Source{{Files: []File{{Path: "secret.txt", Content: "hidden words\n"}}}}
	env := create(t, cfg)
	workspace := env.Primitive().Paths().Workspace
	for _, row := range []struct{ prompt, end string }{
		{"run-command `touch denied`", "reject_once rule once Bash(touch denied)"},
		{"run-command `sh -c 'touch denied'`", "reject_once rule once Bash(touch denied)"},
		{"call-tool `read_file {\"file_path\":\"" + workspace + "/secret.txt\"}`", "reject_once rule once Read(secret.txt)"},
		{"run-command `touch asked`", "allow_once answered once"},
		{"call-tool `list_directory {\"dir_path\":\"" + workspace + "\"}`", ""}, // is not asked
	} {
		events, err := collect(t.Context(), env, Query{Prompt: "please " + row.prompt})
		if err != nil {
			t.Fatalf("%s: %v", row.prompt, err)
		}
		if got := strings.Join(ends(t, events), ", "); got != row.end {
			t.Errorf("%s: it ended as %q, want %q", row.prompt, got, row.end)
		}
		if said := conversation(t, events); strings.Contains(said, "was refused. Denied: ") != strings.Contains(row.end, "rule") {
			t.Errorf("%s: the agent says %s", row.prompt, said)
		}
		for _, ev := range events {
			if strings.Contains(string(ev.Payload), "hidden words") {
				t.Errorf("%s: it was read: %s", row.prompt, ev.Payload)
			}
		}
	}
	names := keysOf(workspaceOf(t, env))
	slices.Sort(names)
	if want := []string{"asked", "secret.txt"}; !slices.Equal(names, want) {
		t.Errorf("the workspace has %q, want %q", names, want)
	}
}

func TestAgentsWhoseDeniedCallsAreRefused(t *testing.T) {
	deny, allow := permission.Rules{Deny: []string{"Bash(rm *)"}}, permission.Rules{Allow: []string{"Bash(ls)"}}
	for name, row := range map[string]struct {
		cfg  Config
		want bool
	}{
		"a deny rule":              {Config{Agent: Agent{Name: "acp"}, Permissions: deny}, true},
		"of the registry":          {Config{Agent: Agent{Name: "acp:goose"}, Permissions: deny}, true},
		"a deny rule of a server":  {Config{Agent: Agent{Name: "acp"}, PermissionLimits: deny}, true},
		"the mode plan":            {Config{Agent: Agent{Name: "acp"}, Permissions: permission.Rules{Mode: permission.ModePlan}}, true},
		"nothing is denied":        {Config{Agent: Agent{Name: "acp"}, Permissions: allow}, false},
		"it asks about everything": {Config{Agent: Agent{Name: "claude"}, Permissions: deny}, false},
	} {
		if got := row.cfg.refuses(); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
