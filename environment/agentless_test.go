package environment

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// listed returns what lists say of a sandbox.
func listed(t *testing.T, box Sandbox, id string) SandboxInfo {
	t.Helper()
	list, err := List(t.Context(), box)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		if info.ID == id {
			return info
		}
	}
	t.Fatalf("no sandbox %s in %+v", id, list)
	return SandboxInfo{}
}

func TestTheFirstAgentOfASandboxIsRemembered(t *testing.T) {
	box := sandbox(t)
	id, _ := kept(t, Config{Sandbox: box})
	bare := attach(t, id, box)
	events, err := collect(t.Context(), bare, Query{Prompt: "one"})
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "--agent") || strings.Contains(err.Error(), runnerscripts.SetupSession) {
		t.Errorf("a query without an agent: %v", err)
	}
	if failed, ok := events[len(events)-1].Value().(*runnerscripts.QueryFailed); !ok || failed.Code != runnerscripts.FailInvalidRequest {
		t.Errorf("the last event is %+v", events[len(events)-1])
	}
	if _, err := bare.ReadTranscript(t.Context()); !errors.Is(err, ErrConfig) {
		t.Errorf("the transcript of no agent: %v", err)
	}
	typo, err := Attach(t.Context(), Config{Sandbox: box, Agent: Agent{Name: "nosuch"}}, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), typo, Query{Prompt: "one"}); err == nil {
		t.Error("an unknown agent has run")
	}
	if err := typo.Close(); err != nil {
		t.Error(err)
	}

	agent := remembering(t)
	named, err := Attach(t.Context(), Config{Sandbox: box, Agent: agent}, id)
	if err != nil {
		t.Fatal(err)
	}
	say(t, named, "one")
	if err := named.Close(); err != nil {
		t.Fatal(err)
	}
	if info := listed(t, box, id); info.Agent != agent.Name || info.QueryEnded.IsZero() {
		t.Errorf("listed as %+v", info)
	}
	again := attach(t, id, box)
	if got := say(t, again, "two"); !strings.Contains(got, "turn 2 after: one") {
		t.Errorf("the next program's agent said %q", got)
	}
	if got := changes(t, again); got != "" {
		t.Errorf("changes: %q", got)
	}
}

// The second agent does not know the conversation of the first, which the sandbox is for.
func TestAnotherAgentDoesNotReplaceTheFirst(t *testing.T) {
	box := sandbox(t)
	agent := remembering(t)
	id, _ := kept(t, Config{Sandbox: box, Agent: agent})
	other := scenario(t, turn(runnerscripts.ScenarioStep{Text: "another"}))
	env, err := Attach(t.Context(), Config{Sandbox: box, Agent: other}, id)
	if err != nil {
		t.Fatal(err)
	}
	if got := say(t, env, "one"); !strings.HasSuffix(got, "another") {
		t.Errorf("it said %q", got)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if got := say(t, attach(t, id, box), "two"); !strings.Contains(got, "after: ") {
		t.Errorf("the sandbox's own agent said %q", got)
	}
}

func TestASandboxWithoutAnAgentMovesAndForksWithItsFiles(t *testing.T) {
	box := sandbox(t)
	id, _ := kept(t, Config{Sandbox: box, Workspace: []Source{{Files: []File{{Path: "old", Content: "1\n"}}}}})
	env := attach(t, id, box)
	put(t, env, "new", "2\n")
	check := func(what string, env *Environment) {
		t.Helper()
		if got := changes(t, env); got != "created new," {
			t.Errorf("%s: changes are %q", what, got)
		}
		if _, err := env.ReadTranscript(t.Context()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: the transcript of no agent: %v", what, err)
		}
	}
	check("the copy", forked(t, env, 1)[0])
	moved := move(t, env, sandbox(t))
	check("the moved one", moved)
}
