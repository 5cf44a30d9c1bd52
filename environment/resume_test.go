package environment

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// lines returns the parts of events that are equal for all clients that follow a query.
func lines(events []runnerscripts.Event) (all []string) {
	for _, ev := range events {
		all = append(all, string(ev.Type)+string(ev.Payload))
	}
	return all
}

func TestWhoHasSomeEventsOfAQueryGetsTheOthersOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, asking(), asking()), OnPermission: AllowAll})
		removeLater(t, env)
		for _, prompt := range []string{"one", "two"} {
			all, err := collect(t.Context(), env, Query{Prompt: prompt, ID: prompt})
			if err != nil {
				t.Fatal(err)
			}
			for i, ev := range all {
				if ev.Index != i+1 {
					t.Errorf("event %d, %s, has index %d", i+1, ev.Type, ev.Index)
				}
			}
			other := attach(t, env.ID(), box)
			step := 3
			if box.Type != "local" { // the way of the bytes differs, not the counting
				step = len(all) / 2
			}
			for after := 0; after <= len(all); after += step {
				for name, follow := range map[string]func() ([]runnerscripts.Event, error){
					"follow": func() ([]runnerscripts.Event, error) { return followedAfter(t.Context(), other, after) },
					"go on": func() ([]runnerscripts.Event, error) {
						return collect(t.Context(), attach(t, env.ID(), box), Query{Prompt: prompt, ID: prompt, After: after})
					},
				} {
					rest, err := follow()
					if err != nil || !slices.Equal(lines(rest), lines(all[after:])) {
						t.Errorf("%s after %d: %v\n%q\nwant\n%q", name, after, err, lines(rest), lines(all[after:]))
					}
				}
			}
		}
	})
}

// followedAfter returns the events of FollowQuery.
func followedAfter(ctx context.Context, env *Environment, after int) (events []runnerscripts.Event, err error) {
	for ev, err := range env.FollowQuery(ctx, after) {
		if err != nil {
			return events, err
		}
		events = append(events, ev)
	}
	return events, nil
}

func TestADetachedQueryGoesOnAndItsRequestIsAnsweredLater(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		for name, let := range map[string]func(env *Environment, cancel func()) (goOn bool){
			"the context is done":       func(_ *Environment, cancel func()) bool { cancel(); return true },
			"the loop is left":          func(*Environment, func()) bool { return false },
			"the environment is closed": func(env *Environment, _ func()) bool { go env.Close(); return true },
		} {
			t.Run(name, func(t *testing.T) {
				q := Query{Prompt: "go", ID: "q", Detach: true}
				cfg := Config{Sandbox: toKeep(box), Agent: scenario(t, asking()), OnPermission: AnswerLater, PermissionTimeout: -1}
				env := create(t, cfg)
				removeLater(t, env)
				var all []runnerscripts.Event
				ctx, cancel := context.WithCancel(t.Context())
				for ev, err := range env.ExecuteQuery(ctx, q) {
					if err != nil {
						if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						break
					}
					if all = append(all, ev); ev.Type == runnerscripts.TypePermissionRequest && !let(env, cancel) {
						break
					}
				}
				cancel()
				if err := env.Close(); err != nil {
					t.Error(err)
				}
				cfg.Sandbox = box
				again, err := Attach(t.Context(), cfg, env.ID())
				if err != nil {
					t.Fatal(err)
				}
				defer again.Close()
				pending := ""
				for _, ev := range all {
					pending = cmp.Or(question(t, ev), pending)
				}
				q.After = all[len(all)-1].Index
				answered := make(chan error, 1)
				go func() {
					for {
						err := again.Respond(t.Context(), pending, allow)
						if errors.Is(err, ErrNoQuery) || errors.Is(err, ErrNotPending) {
							time.Sleep(time.Millisecond)
							continue
						}
						answered <- err
						return
					}
				}()
				for ev, err := range again.ExecuteQuery(t.Context(), q) {
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, ev)
					if id := question(t, ev); id != "" {
						if err := again.Respond(t.Context(), id, allow); err != nil {
							t.Error(err)
						}
					}
				}
				if err := <-answered; err != nil {
					t.Errorf("the answer to what waited: %v", err)
				}
				for i, ev := range all {
					if ev.Index != i+1 {
						t.Errorf("event %d, %s, has index %d", i+1, ev.Type, ev.Index)
					}
				}
				if last := all[len(all)-1]; last.Type != runnerscripts.TypeQueryCompleted {
					t.Errorf("the query ended with %s", last.Type)
				}
			})
		}
	})
}

func TestDetachNeedsASandboxThatIsKept(t *testing.T) {
	env := create(t, Config{Agent: scenario(t, asking())})
	if _, err := collect(t.Context(), env, Query{Prompt: "go", Detach: true}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
}

// A prompt runs once if its program died after recording it, before the prompt reached the
// runner or while it was in transit.
func TestAPromptThatDidNotReachTheRunnerRunsOnce(t *testing.T) {
	binary, err := bundle.Path(t.Context(), bundle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	runner, held := filepath.Join(dir, "envrunner"), filepath.Join(dir, "held")
	// While the file held exists, the feed delivers only the variables, or nothing.
	script := "#!/bin/sh\nif [ \"$1\" = feed ] && [ -e " + held + " ]; then\n" +
		"  if [ \"$(cat " + held + ")\" = request ]; then head -n 1 | " + binary + " \"$@\"; fi\n  touch " + held + ".now\n  exec sleep 1000\nfi\nexec " + binary + " \"$@\"\n"
	if err := os.WriteFile(runner, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, hold := range []string{"all", "request"} {
		for _, first := range []bool{true, false} {
			name := hold + " of the second prompt"
			if first {
				name = hold + " of the first prompt"
			}
			t.Run(name, func(t *testing.T) {
				ran := runnerscripts.ScenarioStep{Run: []string{"sh", "-c", "echo ran >>ran"}}
				cfg := Config{Sandbox: toKeep(sandbox(t)), Agent: scenario(t, turn(ran), turn(ran)), Runner: runner}
				env := create(t, cfg)
				removeLater(t, env)
				want := "ran\n"
				if !first {
					if _, err := collect(t.Context(), env, Query{Prompt: "before"}); err != nil {
						t.Fatal(err)
					}
					want += want
				}
				if err := env.Close(); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.WriteFile(held, []byte(hold), 0o600), os.RemoveAll(held+".now")); err != nil {
					t.Fatal(err)
				}
				again, err := Attach(t.Context(), cfg, env.ID())
				if err != nil {
					t.Fatal(err)
				}
				defer again.Close()
				ctx, cancel := context.WithCancel(t.Context())
				go func() { // the program dies when the prompt is recorded
					for noted := ""; noted != "q" || !exists(held+".now"); time.Sleep(time.Millisecond) {
						if all := promptsOf(t, again); len(all) > 0 {
							noted = all[len(all)-1]
						}
					}
					cancel()
				}()
				q := Query{Prompt: "go", ID: "q", Detach: true}
				if events, err := collect(ctx, again, q); !errors.Is(err, context.Canceled) {
					t.Fatalf("%q, %v", types(events), err)
				}
				if err := os.Remove(held); err != nil {
					t.Fatal(err)
				}
				other := attach(t, env.ID(), cfg.Sandbox)
				events, err := collect(t.Context(), other, q)
				if err != nil || events[0].Type != runnerscripts.TypeQueryStarted && events[0].Type != runnerscripts.TypeSessionInitialized {
					t.Errorf("the query: %q, %v", types(events), err)
				}
				for i, ev := range events {
					if ev.Index != i+1 {
						t.Errorf("event %d, %s, has index %d", i+1, ev.Type, ev.Index)
					}
				}
				workspaceOf(t, other).mustBe(t, tree{"ran": want})
			})
		}
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// The events that a killed program got of a query and those that the next program gets are
// together the events of the query.
func TestAQueryOfAKilledHostGoesOnWhereItWas(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		id := killedHost(t, Config{Sandbox: toKeep(box), Agent: scenario(t, waiting("go-on"))}, "before")
		env := attach(t, id, box)
		const has = 4
		writeIn(t, env, "go-on", "")
		rest, err := collect(t.Context(), env, Query{Prompt: "go", ID: "the-query", After: has})
		if err != nil {
			t.Fatal(err)
		}
		all, err := followed(t.Context(), attach(t, id, box))
		if err != nil || !slices.Equal(lines(all[has:]), lines(rest)) || rest[0].Index != has+1 {
			t.Errorf("%v\n%q\nwant the end of\n%q", err, lines(rest), lines(all))
		}
	})
}
