package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// asking returns a turn that asks for permission, prints a text, and asks again.
func asking() runnerscripts.ScenarioTurn {
	ask := runnerscripts.ScenarioStep{Ask: &runnerscripts.ScenarioStep{Run: []string{"true"}}}
	return turn(ask, runnerscripts.ScenarioStep{Text: "between"}, ask)
}

// allow is the answer to each request.
var allow = runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}

// removeLater removes a kept sandbox at the end of the test.
func removeLater(t *testing.T, env *Environment) {
	t.Helper()
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), env.cfg.Sandbox, env.ID()); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
}

// question returns the ID of a permission request; empty for other events.
func question(t *testing.T, ev runnerscripts.Event) string {
	t.Helper()
	if ev.Type != runnerscripts.TypePermissionRequest {
		return ""
	}
	req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
	if err != nil {
		t.Fatal(err)
	}
	return req.ID
}

func TestAFollowerKnowsWhichRequestsAreAnswered(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, asking()), OnPermission: AnswerLater})
	removeLater(t, env)
	second := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		askedTwice := sync.OnceFunc(func() { close(second) })
		defer askedTwice()
		asked := 0
		for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "go"}) {
			if err != nil {
				t.Error(err)
				return
			}
			id := question(t, ev)
			if id == "" {
				continue
			}
			if asked++; asked == 2 {
				askedTwice()
				continue // the other client answers
			}
			if err := env.Respond(t.Context(), id, allow); err != nil {
				t.Error(err)
			}
		}
	})
	<-second
	other := attach(t, env.ID(), box)
	var answered []bool
	for ev, err := range other.FollowQuery(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		id := question(t, ev)
		if id == "" {
			continue
		}
		err = other.Respond(t.Context(), id, allow)
		if err != nil && !errors.Is(err, ErrNotPending) {
			t.Error(err)
		}
		answered = append(answered, err != nil)
	}
	running.Wait()
	if len(answered) != 2 || !answered[0] || answered[1] {
		t.Errorf("answered: %v, want the first only", answered)
	}
	// After the end of the query there is no request to decide.
	other.queries.Permissions.On = func(_ context.Context, req PermissionRequest) PermissionDecision {
		t.Errorf("it is asked for a decision about %s", req.ID)
		return req.Allow()
	}
	for ev, err := range other.FollowQuery(t.Context(), 0) {
		if id := question(t, ev); err != nil || id != "" && !errors.Is(other.Respond(t.Context(), id, allow), ErrNotPending) {
			t.Errorf("afterwards %q is open, or %v", id, err)
		}
	}
}

func TestLogsSoFarEndWhileTheAgentRuns(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"))})
		removeLater(t, env)
		other := attach(t, env.ID(), box)
		read := func() string {
			var log strings.Builder
			for entry, err := range other.Logs(t.Context(), false) {
				if err != nil {
					t.Fatal(err)
				}
				log.WriteString(entry.Message + "\n")
			}
			return log.String()
		}
		said := ""
		for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "go"}) {
			if err != nil {
				t.Fatal(err)
			}
			if said += ev.Text(); strings.HasSuffix(said, "before") {
				if log := read(); !strings.Contains(log, "began: go") || strings.Contains(log, "ended") {
					t.Errorf("while it runs:\n%s", log)
				}
				writeIn(t, env, "go-on", "")
				said = ""
			}
		}
		if log := read(); !strings.Contains(log, "ended (end_turn)") {
			t.Errorf("afterwards:\n%s", log)
		}
	})
}

func TestLogsSayHowARunnerDied(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, turn(runnerscripts.ScenarioStep{Crash: 3}))})
	removeLater(t, env)
	if _, err := collect(t.Context(), env, Query{Prompt: "go"}); !errors.As(err, new(*ScriptError)) {
		t.Fatalf("the query ended with %v", err)
	}
	log := ""
	for entry, err := range attach(t, env.ID(), box).Logs(t.Context(), false) {
		if err != nil {
			t.Fatal(err)
		}
		log += entry.Message + "\n"
	}
	if !strings.Contains(log, "the runner") {
		t.Errorf("the log is\n%s", log)
	}
}

func TestAnAgentThatNoFeedReachesIsEndedAndSaysWhy(t *testing.T) {
	binary, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	runner := filepath.Join(t.TempDir(), "envrunner")
	script := "#!/bin/sh\nif [ \"$1\" = feed ]; then echo no way in >&2; exit 1; fi\nexec " + binary + " \"$@\"\n"
	if err := os.WriteFile(runner, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	env := create(t, Config{Sandbox: toKeep(sandbox(t)), Agent: scenario(t, waiting("never")), Runner: runner})
	removeLater(t, env)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // half as long as the agent waits for another feed
	defer cancel()
	_, err = collect(ctx, env, Query{Prompt: "go"})
	var failed *ScriptError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "no way in") || ctx.Err() != nil {
		t.Errorf("the query ended with %v", err)
	}
}
