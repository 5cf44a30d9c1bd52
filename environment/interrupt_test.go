package environment

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// An interrupt stops a real agent at any time, once, and the agent continues with the next
// query.
func TestRealAgentsStop(t *testing.T) {
	agents := map[string]func(url string) Agent{
		"claude": func(url string) Agent {
			return Agent{Name: "claude", Command: []string{testagents.Claude(t)}, Env: claudeVariables(url)}
		},
		"codex": func(url string) Agent {
			return Agent{
				Name: "codex", Command: []string{testagents.Codex(t)}, Model: "gpt-5.5",
				Env: map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"},
			}
		},
	}
	for name, agent := range agents {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, err := llmapi.Start(t.Context(), llmapi.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := api.Close(); err != nil {
					t.Error(err)
				}
			})
			env := create(t, Config{Sandbox: sandbox(t), Agent: agent(api.URL), OnPermission: AnswerLater, PermissionTimeout: -1})
			for _, c := range []struct {
				name, prompt string
				at           runnerscripts.EventType
			}{
				{"before it has begun", "slow-stream", runnerscripts.TypeQueryStarted},
				{"while it answers", "slow-stream", runnerscripts.TypeAgentMessage},
				{"while it waits for permission", "run-command `touch f`", runnerscripts.TypePermissionRequest},
			} {
				stopsAt(t, env, c.name, c.prompt, c.at)
			}
			p := env.agent
			if _, err := collect(t.Context(), env, Query{Prompt: "remember"}); err != nil || env.agent != p {
				t.Errorf("the next query: %v, of the same process: %v", err, env.agent == p)
			}
		})
	}
}

// stopsAt interrupts a query at the first event of a type.
func stopsAt(t *testing.T, env *Environment, name, prompt string, at runnerscripts.EventType) {
	t.Helper()
	var events []runnerscripts.Event
	interrupted := false
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: prompt}) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		events = append(events, ev)
		if ev.Type == at && !interrupted {
			interrupted = true
			if err := env.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	last := events[len(events)-1]
	if done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](last); err != nil || done.StopReason != runnerscripts.StopCancelled || !interrupted {
		t.Errorf("%s: interrupted %v, the last of %q is %s", name, interrupted, types(events), last.Payload)
	}
	for id, ends := range resolutions(t, events) {
		if len(ends) != 1 || ends[0].Reason != reasonCancelled {
			t.Errorf("%s: request %s was resolved as %+v", name, id, ends)
		}
	}
}
