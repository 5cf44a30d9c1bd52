package opencode

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestConversation tests what does not end the server, with one server.
func TestConversation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Raw = true
	f.each(t, f.start(), slices.Concat(permissionSteps(), []step{ // the last of them chooses the mode that never asks
		{"failures leave the session usable", failures},
		{"queries that the model ends early", endsEarly},
		{"the lines of a change are shown", showsAChange},
		{"raw lines come on request", givesRawLines},
		{"a plan is told", plans},
		{"an unknown model is refused", refusesUnknownModels},
		{"the plan mode writes no file", onlyPlans},
	}))
}

func showsAChange(f *fixture, c *conversation) {
	agenttest.WriteFile(f, f.WorkspaceFile("change.txt"), "first\nold\nlast\n")
	f.Prompt(c, "edit-file `change.txt`")
	call := f.call()
	if call.Title != "edit change.txt" || len(call.Content) != 1 {
		f.Fatalf("call: %s", agenttest.Show(f, call))
	}
	if c := call.Content[0]; c.OldText == nil || *c.OldText != "old" || c.NewText != "new" {
		f.Errorf("content: %s", agenttest.Show(f, c))
	}
}

func givesRawLines(f *fixture, _ *conversation) {
	var types []string
	for _, l := range agenttest.Payloads[event](f, f.Out.All(), runnerscripts.TypeRaw) {
		types = append(types, l.Type)
	}
	if all := strings.Join(types, " "); !strings.Contains(all, "message.part.delta") || !strings.Contains(all, "session.status") {
		f.Errorf("raw lines: %s", all)
	}
}

func plans(f *fixture, c *conversation) {
	f.Prompt(c, "plan")
	plans := agenttest.Payloads[runnerscripts.Plan](f, f.Events(), runnerscripts.TypePlan)
	want := runnerscripts.PlanEntry{Content: "Think", Status: "completed", Priority: "high"}
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[0] != want {
		f.Errorf("plans: %+v", plans)
	}
}

func refusesUnknownModels(f *fixture, c *conversation) {
	for _, model := range []string{"scripted/none", "large"} {
		if err := c.SetModel(f.Context(), model); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			f.Errorf("the unknown model %q: %v", model, err)
		}
	}
}

func onlyPlans(f *fixture, c *conversation) {
	if err := c.SetMode(f.Context(), modePlan); err != nil {
		f.Fatal(err)
	}
	f.Prompt(c, "write-file `planned.txt`")
	if f.Exists("planned.txt") {
		f.Error("the file is written")
	}
	if asked := f.Requests(); len(asked) > 0 {
		f.Errorf("asked: %+v", asked)
	}
}
