package environment

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// move moves an environment to another one that is closed with the test.
func move(t *testing.T, env *Environment, to Sandbox) *Environment {
	t.Helper()
	moved, err := env.Move(t.Context(), Config{Sandbox: to, Trust: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := moved.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return moved
}

func TestASessionMovesThroughSandboxesOfEveryType(t *testing.T) {
	to := boxes(t)
	first := create(t, Config{Sandbox: to["local"], Agent: remembering(t), Workspace: []Source{{Files: []File{{Path: "old", Content: "a\n"}}}}})
	if got := say(t, first, "one"); !strings.Contains(got, "turn 1") {
		t.Fatalf("it said %q", got)
	}
	put(t, first, "new", "b\n")
	env := first
	for i, typ := range []string{"docker", "modal", "local"} {
		before := env
		env = move(t, env, to[typ])
		if env.SessionID() != first.SessionID() || env.ID() == before.ID() {
			t.Errorf("%s: session %s in %s, before %s in %s", typ, env.SessionID(), env.ID(), first.SessionID(), before.ID())
		}
		if err := before.Healthy(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: the one before: %v", typ, err)
		}
		if _, err := Attach(t.Context(), Config{Sandbox: before.cfg.Sandbox}, before.ID()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the sandbox before: %v", typ, err)
		}
		prompt := []string{"two", "three", "four"}[i]
		if got := say(t, env, prompt); !strings.Contains(got, "after: "+strings.Join([]string{"one", "two", "three"}[:i+1], "\n")) {
			t.Errorf("%s: it remembers %q", typ, got)
		}
		if got := changes(t, env); got != "created new," {
			t.Errorf("%s: changes are %q", typ, got)
		}
	}
}

func TestAMoveThatFailsLeavesEverythingAsItWas(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: remembering(t)})
	say(t, env, "one")
	missing := sandbox(t)
	missing.Workspace = "/nonexistent/folder"
	for name, to := range map[string]Config{
		"no sandbox":       {},
		"one that fails":   {Sandbox: missing},
		"another agent":    {Sandbox: sandbox(t), Agent: Agent{Name: "claude"}},
		"another session":  {Sandbox: sandbox(t), SessionID: "other"},
		"with a workspace": {Sandbox: sandbox(t), Workspace: []Source{{Files: []File{{Path: "x"}}}}},
	} {
		if moved, err := env.Move(t.Context(), to); err == nil || moved != nil {
			t.Errorf("%s: %v, %v", name, moved, err)
		}
	}
	if got := say(t, env, "two"); !strings.Contains(got, "after: one") {
		t.Errorf("it said %q", got)
	}
}

func TestASandboxThatIsKeptMovesWithItsRecord(t *testing.T) {
	t.Parallel()
	from, to := sandbox(t), sandbox(t)
	env := create(t, Config{Sandbox: toKeep(from), Agent: remembering(t)})
	say(t, env, "one")
	put(t, env, "new", "b\n")
	moved, err := env.Move(t.Context(), Config{Sandbox: toKeep(to)})
	if err != nil {
		t.Fatal(err)
	}
	if err := moved.Close(); err != nil {
		t.Error(err)
	}
	// A program that only moves it need not have talked to the agent.
	second, err := attach(t, moved.ID(), to).Move(t.Context(), Config{Sandbox: toKeep(to)})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	again := attach(t, second.ID(), to)
	if got := changes(t, again); got != "created new," {
		t.Errorf("changes are %q", got)
	}
	if got := say(t, again, "two"); !strings.Contains(got, "after: one") {
		t.Errorf("it said %q", got)
	}
	// Moved by a program that has attached to it, too.
	last, err := again.Move(t.Context(), Config{Sandbox: from})
	if err != nil {
		t.Fatal(err)
	}
	if got := changes(t, last); got != "created new," {
		t.Errorf("changes are %q", got)
	}
	if data, err := primitives.ReadFile(t.Context(), last.Primitive(), "new", 100); err != nil || string(data) != "b\n" {
		t.Errorf("%q, %v", data, err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}
