package session

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// executor returns an agent that writes its prompt to the file told and answers "answered".
func executor() environment.Agent {
	return environment.Agent{Name: "command", Command: []string{"/bin/sh", "-c", "cat > told; echo answered"}}
}

func TestAnotherAgentContinuesASession(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("before: {{history}}"), run("/bin/sh", "-c", "echo {{turn}} >> kept")))
	cfg.Store = store.NewMemory()
	cfg.Environment.Agent.Model = "m1"
	first := start(t, cfg)
	converse(t, first, "the secret word is plum")
	if err := first.SetOptions(t.Context(), Options{Model: "m2"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	other := cfg
	other.ID, other.Environment.Agent = first.ID(), executor()
	second := start(t, other)
	if st, _ := second.State(t.Context()); st.Agent != "command" || st.Options != (Options{}) || st.Model != "" || st.Title != "the secret word is plum" {
		t.Errorf("state %+v", st)
	}
	converse(t, second, "go on")
	told, _ := written(t, second, "told")
	if !strings.Contains(told, "the secret word is plum") || !strings.Contains(told, "go on") {
		t.Errorf("the second agent was told %q", told)
	}
	if kept, _ := written(t, second, "kept"); kept != "1\n" {
		t.Errorf("the workspace holds %q", kept)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	cfg.ID = first.ID()
	third := start(t, cfg)
	if got := converse(t, third, "and now"); !strings.Contains(got, "the secret word is plum") || !strings.Contains(got, "go on") {
		t.Errorf("the first agent says after the second one: %q", got)
	}
	rec, err := cfg.Store.Load(t.Context(), first.ID())
	if err != nil || rec.Agent != "script" {
		t.Errorf("record %+v, %v", rec, err)
	}
	changes(t, third)
}

// changes fails unless the log has the two changes of the agent, and how each new agent got the
// conversation.
func changes(t *testing.T, s *AgentSession) {
	t.Helper()
	var agents []runnerscripts.AgentChanged
	var ways []runnerscripts.TranscriptRestored
	for _, ev := range logOf(t, s) {
		switch v := ev.Value().(type) {
		case *runnerscripts.AgentChanged:
			agents = append(agents, *v)
		case *runnerscripts.TranscriptRestored:
			ways = append(ways, *v)
		}
	}
	if want := []runnerscripts.AgentChanged{{Agent: "command", From: "script"}, {Agent: "script", From: "command"}}; !slices.Equal(agents, want) {
		t.Errorf("agents %+v", agents)
	}
	want := []runnerscripts.TranscriptRestored{
		{From: "script", Way: runnerscripts.RestoredSummary}, {From: "command", Way: runnerscripts.RestoredConverted},
	}
	if !slices.Equal(ways, want) {
		t.Errorf("restored %+v", ways)
	}
}

func TestTitleIsTheFirstPromptUnlessTheAgentSaysMore(t *testing.T) {
	t.Parallel()
	c := NewConversation()
	c.Apply(event(runnerscripts.TypeQueryStarted, "q", runnerscripts.QueryStarted{Prompt: "  fix the\n\tflaky test " + strings.Repeat("please ", 50)}))
	c.Apply(event(runnerscripts.TypeQueryStarted, "r", runnerscripts.QueryStarted{Prompt: "another"}))
	if got := []rune(c.Title); len(got) != 80 || !strings.HasPrefix(c.Title, "fix the flaky test please") || got[79] != '…' {
		t.Errorf("title %q", c.Title)
	}
	c.Apply(event(runnerscripts.TypeSessionInfo, "", runnerscripts.SessionInfo{Title: "Flaky test", Summary: "It is stable now."}))
	c.Apply(event(runnerscripts.TypeSessionInitialized, "", runnerscripts.SessionInitialized{
		Agent: "a", Tools: []string{"Bash"}, Models: []runnerscripts.Model{{ID: "m"}},
	}))
	if c.Title != "Flaky test" || c.Summary != "It is stable now." || !slices.Equal(c.Tools, []string{"Bash"}) || c.Models[0].ID != "m" {
		t.Errorf("state %+v", c.State)
	}
	said := c.Initialized
	c.Apply(event(runnerscripts.TypeAgentChanged, "", runnerscripts.AgentChanged{Agent: "b", From: "a"}))
	if !said || c.Initialized || c.Tools != nil || c.Models != nil {
		t.Errorf("after another agent: %+v", c.State)
	}
}
