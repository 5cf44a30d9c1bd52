package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// scenario returns an agent that plays the turns.
func scenario(t *testing.T, turns ...runnerscripts.ScenarioTurn) Agent {
	t.Helper()
	config, err := json.Marshal(runnerscripts.Scenario{Turns: turns})
	if err != nil {
		t.Fatal(err)
	}
	return Agent{Name: "script", Config: config}
}

func turn(steps ...runnerscripts.ScenarioStep) runnerscripts.ScenarioTurn {
	return runnerscripts.ScenarioTurn{Steps: steps}
}

func write(name, content string) *runnerscripts.ScenarioWrite {
	return &runnerscripts.ScenarioWrite{Path: name, Content: content}
}

// conversation returns the texts of events as "type: text" lines.
func conversation(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	var b strings.Builder
	last := ""
	for _, ev := range events {
		if ev.Type != runnerscripts.TypeUserMessage && ev.Type != runnerscripts.TypeAgentMessage {
			continue
		}
		chunk, err := runnerscripts.Payload[runnerscripts.ContentChunk](ev)
		if err != nil {
			t.Fatal(err)
		}
		if chunk.BlockID != last {
			fmt.Fprintf(&b, "\n%s: ", ev.Type)
			last = chunk.BlockID
		}
		b.WriteString(chunk.Content.Text)
	}
	return b.String()
}

func TestTheScriptAgentWorksEndToEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: scenario(
			t,
			turn(runnerscripts.ScenarioStep{Write: write("a.txt", "one\n")}, runnerscripts.ScenarioStep{Text: "first"}),
			turn(runnerscripts.ScenarioStep{Run: []string{"sh", "-c", "echo two >> a.txt"}}, runnerscripts.ScenarioStep{Text: "second of {{turn}}"}),
		)})
		var live []runnerscripts.Event
		for _, prompt := range []string{"go", "on"} {
			events, err := collect(t.Context(), env, Query{Prompt: prompt})
			if err != nil {
				t.Fatal(err)
			}
			if last := events[len(events)-1]; last.Type != runnerscripts.TypeQueryCompleted {
				t.Errorf("the last event is %s", last.Type)
			}
			live = append(live, events...)
		}
		if got := workspaceOf(t, env); !reflect.DeepEqual(got, tree{"a.txt": "one\ntwo\n"}) {
			t.Errorf("workspace %q", got)
		}
		var read []runnerscripts.Event
		for ev, err := range env.ReadConversation(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Source != runnerscripts.SourceTranscript || ev.SessionID != env.SessionID() {
				t.Errorf("%s has source %q and session %q", ev.Type, ev.Source, ev.SessionID)
			}
			read = append(read, ev)
		}
		if a, b := conversation(t, live), conversation(t, read); a != b || !strings.Contains(a, "second of 2") {
			t.Errorf("live\n%s\nread back\n%s", a, b)
		}
		for range env.ReadConversation(t.Context()) {
			break // ends the script
		}
	})
}

func TestATranscriptMakesAnAgentRememberInAnotherSandbox(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		agent := scenario(t, turn(runnerscripts.ScenarioStep{Text: "turn {{turn}} after: {{history}}"}))
		first := create(t, Config{Sandbox: box, Agent: agent})
		if transcript, err := first.ReadTranscript(t.Context()); err != nil || transcript.Main != "" {
			t.Fatalf("transcript %q, %v; want an empty one", transcript.Main, err)
		}
		if _, err := collect(t.Context(), first, Query{Prompt: "remember me"}); err != nil {
			t.Fatal(err)
		}
		transcript, err := first.ReadTranscript(t.Context())
		if err != nil || transcript.Main == "" {
			t.Fatalf("transcript %q, %v", transcript.Main, err)
		}
		second := create(t, Config{Sandbox: box, Agent: agent, SessionID: first.SessionID()})
		if _, err := second.PrepareSession(t.Context(), Setup{
			Transcript: &transcript,
			Files:      []runnerscripts.WorkspaceFile{{Path: "dir/f", Content: []byte("1")}},
		}); err != nil {
			t.Fatal(err)
		}
		events, err := collect(t.Context(), second, Query{Prompt: "again"})
		if err != nil {
			t.Fatal(err)
		}
		if got := conversation(t, events); !strings.Contains(got, "turn 2 after: remember me") {
			t.Errorf("the agent said %q", got)
		}
		workspaceOf(t, second).mustBe(t, tree{"dir/f": "1"})
	})
}

func TestPermissionsAreAskedAndAnswered(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		for name, c := range map[string]struct {
			kind runnerscripts.PermissionKind
			want tree
		}{
			"allowed": {runnerscripts.AllowOnce, tree{"f": "1"}},
			"denied":  {runnerscripts.RejectOnce, tree{}},
		} {
			t.Run(name, func(t *testing.T) {
				env := create(t, Config{Sandbox: box, Agent: asksForF(t), OnPermission: AnswerLater})
				asked := false
				for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
					if err != nil {
						t.Fatal(err)
					}
					if ev.Type != runnerscripts.TypePermissionRequest {
						continue
					}
					asked = true
					request, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
					if err != nil {
						t.Fatal(err)
					}
					if err := env.Respond(t.Context(), request.ID, runnerscripts.PermissionDecision{Kind: c.kind}); err != nil {
						t.Fatal(err)
					}
				}
				if !asked {
					t.Error("nothing was asked")
				}
				workspaceOf(t, env).mustBe(t, c.want)
			})
		}
	})
}

func TestWhatTheRunnerReportsIsTyped(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		failing := scenario(t, turn(runnerscripts.ScenarioStep{Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, Message: "overloaded", HTTPStatus: 529}}))
		env := create(t, Config{Sandbox: box, Agent: failing})
		_, err := collect(t.Context(), env, Query{Prompt: "x"})
		var query *QueryError
		if !errors.As(err, &query) || query.Failure.Code != runnerscripts.FailAPI {
			t.Errorf("a failed query: %v, want a QueryError", err)
		}

		env = create(t, Config{Sandbox: box, Agent: scenario(t, turn(runnerscripts.ScenarioStep{Crash: 42}), turn(runnerscripts.ScenarioStep{Text: "back"}))})
		_, err = collect(t.Context(), env, Query{Prompt: "x"})
		var script *ScriptError
		if !errors.As(err, &script) || script.Status.Code != 42 {
			t.Errorf("a crash: %v, want a ScriptError with code 42", err)
		}

		// Create makes no container for an unknown agent.
		env, err = Create(t.Context(), Config{Sandbox: box, Agent: Agent{Name: "nobody"}})
		if err == nil {
			_, err = env.PrepareSession(t.Context(), Setup{})
			err = errors.Join(err, env.Close())
		}
		var failure *runnerscripts.ScriptFailure
		if !errors.As(err, &failure) || failure.Code != runnerscripts.FailUnknownAgent {
			t.Errorf("an unknown agent: %v, want FailUnknownAgent", err)
		}
	})
}

func TestHealthyAsksTheSandbox(t *testing.T) {
	env := create(t, Config{})
	if err := env.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(env.Primitive().Paths().Workspace); err != nil {
		t.Fatal(err)
	}
	if err := env.Healthy(t.Context()); err == nil {
		t.Error("a sandbox without its workspace is healthy")
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if err := env.Healthy(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}

func TestAKeptSandboxCanBeAttachedTo(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		first, err := Create(t.Context(), Config{
			Sandbox: toKeep(box), Agent: scenario(t, turn(runnerscripts.ScenarioStep{Write: write("new", "1\n")}, runnerscripts.ScenarioStep{Text: "{{history}}"})),
			Workspace:     []Source{{Files: []File{{Path: "old", Content: "1\n"}}}},
			IgnoreChanges: []string{"vendor"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := collect(t.Context(), first, Query{Prompt: "the first"}); err != nil {
			t.Fatal(err)
		}
		writeIn(t, first, "vendor/x", "1")
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		second, err := Attach(t.Context(), Config{Sandbox: box}, first.ID())
		if err != nil {
			t.Fatal(err)
		}
		changes, err := second.Changes(t.Context())
		if err != nil || len(changes) != 1 || changes[0].Path != "new" {
			t.Errorf("changes %+v, %v; want those since the creation", changes, err)
		}
		events, err := collect(t.Context(), second, Query{Prompt: "the second"})
		if err != nil {
			t.Fatal(err)
		}
		if got := conversation(t, events); second.SessionID() != first.SessionID() || !strings.Contains(got, "the first") {
			t.Errorf("the agent said %q", got)
		}
		_, err = second.Primitive().Terminate(t.Context())
		if err = errors.Join(err, second.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := Attach(t.Context(), Config{Sandbox: box}, first.ID()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("attach to a sandbox that is gone: %v, want fs.ErrNotExist", err)
		}
	})
}

func TestNewInstallsTheRunnerAndReplacesAStaleOne(t *testing.T) {
	p, err := local.New(t.Context(), local.Config{Root: filepath.Join(t.TempDir(), "boxes")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Terminate(context.WithoutCancel(t.Context())) })
	app := p.Paths().App
	stale := path.Join(app, script.RunnerName+"0123456789abcdef")
	if err := p.WriteFile(t.Context(), stale, strings.NewReader("stale"), primitives.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	// Use a sandbox that cannot reach files of this machine.
	env, err := New(t.Context(), struct {
		primitives.EnvironmentPrimitive
	}{p}, Config{Agent: Agent{Name: "script"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), env, Query{Prompt: "hello"}); err != nil {
		t.Fatal(err)
	}
	runners, err := p.List(t.Context(), app, primitives.ListOptions{Pattern: script.RunnerName + "*"})
	if err != nil || len(runners) != 1 || path.Join(app, runners[0].Path) == stale {
		t.Fatalf("runners %+v, %v; want one that is not stale", runners, err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	// The caller still owns the sandbox, and a second environment finds the runner.
	again, err := New(t.Context(), p, Config{Agent: Agent{Name: "script"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.PrepareSession(t.Context(), Setup{}); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Stat(t.Context(), path.Join(app, runners[0].Path)); err != nil || info.Revision != runners[0].Revision {
		t.Errorf("the runner was written again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheEnvironmentOfAScriptIsAnAllowList(t *testing.T) {
	t.Setenv("AGENTENV_TEST_SECRET", "hunter2")
	env := create(t, Config{
		Agent: Agent{Env: map[string]string{"GIVEN": "yes"}},
		Scripts: Scripts{SetupSession: shell(`cat >/dev/null
			[ "$GIVEN" = yes ] && [ -z "$AGENTENV_TEST_SECRET" ] && [ -d "$HOME" ] && [ "$HOME" != "` + os.Getenv("HOME") + `" ] &&
			echo '{"type":"result","ok":true}'`)},
	})
	if _, err := env.PrepareSession(t.Context(), Setup{}); err != nil {
		t.Error(err)
	}
}
