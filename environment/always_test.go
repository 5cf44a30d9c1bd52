package environment

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// An answer of the scope always holds in later sessions of the same project and user, until it is removed, and not
// against the rules.
func TestAnAnswerForAlwaysHoldsInLaterSessions(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	project, other := t.TempDir(), t.TempDir()
	always := func(_ context.Context, req PermissionRequest) PermissionDecision {
		kind := runnerscripts.AllowOnce
		if strings.Contains(string(req.ToolCall.RawInput), "no") {
			kind = runnerscripts.RejectOnce
		}
		return PermissionDecision{Kind: kind, Scope: runnerscripts.ScopeAlways, By: "ann"}
	}
	run := func(folder string, change func(*Config)) []string {
		t.Helper()
		cfg := Config{
			Agent: scenario(t, turn(runs("touch", "a"), runs("touch", "no"))), Workspace: []Source{{Folder: &Folder{Path: folder}}},
			Permissions: permission.Rules{Deny: []string{"Bash(rm *)"}}, OnPermission: RejectAll,
		}
		change(&cfg)
		events, err := collect(t.Context(), create(t, cfg), Query{Prompt: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return ends(t, events)
	}
	asked := []string{"reject_once answered once", "reject_once answered once"}
	for _, row := range []struct {
		name   string
		folder string
		change func(*Config)
		want   []string
	}{
		{"the first session", project, func(c *Config) { c.OnPermission = always }, []string{"allow_once answered always", "reject_once answered always"}},
		{"the next one", project, func(*Config) {}, []string{"allow_once always always", "reject_once always always"}},
		{"with a checkpoint in place of the folder", other, func(c *Config) { c.Session.Sources = []Source{{Folder: &Folder{Path: project}}} }, []string{"allow_once always always", "reject_once always always"}},
		{"another project", other, func(*Config) {}, asked},
		{"another user", project, func(c *Config) { c.Session.User = "bob" }, asked},
		{"a deny rule", project, func(c *Config) { c.Permissions.Deny = []string{"Bash(touch a)"} }, []string{"reject_once rule once Bash(touch a)", "reject_once always always"}},
		{"a new ask rule", project, func(c *Config) { c.Permissions.Ask = []string{"Bash(touch *)"} }, asked},
		{"no permissions", project, func(c *Config) { c.Permissions = permission.Rules{} }, []string{"reject_once answered", "reject_once answered"}},
	} {
		if got := run(row.folder, row.change); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	list, err := answers.List()
	if err != nil || len(list) != 2 || list[0].Call != `["touch","a"]` || list[0].Project != project || list[0].By != "ann" {
		t.Fatalf("stored: %+v, %v", list, err)
	}
	if err := answers.Remove(list[0].ID); err != nil {
		t.Fatal(err)
	}
	if got, want := run(project, func(*Config) {}), []string{"reject_once answered once", "reject_once always always"}; !slices.Equal(got, want) {
		t.Errorf("after it was removed: %q, want %q", got, want)
	}
}

func TestAnAnswerForAlwaysThatCannotBeKept(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	rules := permission.Rules{Deny: []string{"Bash(rm *)"}}
	folder := []Source{{Folder: &Folder{Path: t.TempDir()}}}
	always := PermissionDecision{Kind: runnerscripts.AllowOnce, Scope: runnerscripts.ScopeAlways}
	forever, changed := always, always
	forever.Scope, changed.UpdatedInput = "forever", json.RawMessage(`{"command":"touch c"}`)
	for name, row := range map[string]struct {
		cfg      Config
		decision PermissionDecision
		says     string
	}{
		"without permissions":  {Config{Workspace: folder}, always, "add permissions"},
		"without a project":    {Config{Permissions: rules, Workspace: []Source{{Files: []File{{Path: "f"}}}}}, always, "no folder or repository"},
		"an unknown scope":     {Config{Permissions: rules, Workspace: folder}, forever, `no "forever"`},
		"with a changed input": {Config{Permissions: rules, Workspace: folder}, changed, "updated_input"},
	} {
		t.Run(name, func(t *testing.T) {
			row.cfg.Agent = scenario(t, turn(runs("touch", "a")))
			row.cfg.OnPermission = AnswerLater
			env := create(t, row.cfg)
			for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
				if err != nil {
					t.Fatal(err)
				}
				if req, ok := ev.Value().(*runnerscripts.PermissionRequest); ok {
					if err := env.Respond(t.Context(), req.ID, row.decision); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), row.says) {
						t.Errorf("got %v", err)
					}
					if err := env.Respond(t.Context(), req.ID, req.Reject("no")); err != nil { // it still waits
						t.Error(err)
					}
				}
			}
			// A callback's decision is rejected instead, and an event says why.
			row.cfg.OnPermission = func(context.Context, PermissionRequest) PermissionDecision { return row.decision }
			events, err := collect(t.Context(), create(t, row.cfg), Query{Prompt: "x"})
			if err != nil {
				t.Fatal(err)
			}
			if got := ends(t, events); len(got) != 1 || !strings.HasPrefix(got[0], "reject_once answered") {
				t.Errorf("the callback's decision ends as %q", got)
			}
			said := slices.ContainsFunc(events, func(ev runnerscripts.Event) bool {
				v, ok := ev.Value().(*runnerscripts.Log)
				return ok && strings.Contains(v.Message, row.says)
			})
			if !said {
				t.Error("no event says why")
			}
		})
	}
}
