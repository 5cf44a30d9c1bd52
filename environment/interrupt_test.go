package environment

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// An interrupt stops an agent at any time, once, and the same process continues with the next
// query.
func TestAnAgentStopsAtAnyTime(t *testing.T) {
	t.Parallel()
	slow := []runnerscripts.ScenarioStep{{DelayMS: 3_600_000}}
	env := create(t, Config{OnPermission: AnswerLater, PermissionTimeout: -1, Agent: scenario(
		t,
		runnerscripts.ScenarioTurn{When: "think", Steps: slow},
		runnerscripts.ScenarioTurn{When: "talk", Steps: append([]runnerscripts.ScenarioStep{{Text: "one"}}, slow...)},
		runnerscripts.ScenarioTurn{When: "ask", Steps: []runnerscripts.ScenarioStep{{Ask: &runnerscripts.ScenarioStep{Write: write("f", "")}}}},
		turn(runnerscripts.ScenarioStep{Text: "after: {{history}}"}),
	)})
	for _, c := range []struct {
		name, prompt string
		at           runnerscripts.EventType
	}{
		{"before it has begun", "think", runnerscripts.TypeQueryStarted},
		{"while it answers", "talk", runnerscripts.TypeAgentMessage},
		{"while it waits for permission", "ask", runnerscripts.TypePermissionRequest},
	} {
		stopsAt(t, env, c.name, c.prompt, c.at)
	}
	p := env.queries.Agent()
	if text := say(t, env, "remember"); !strings.Contains(text, "after: think\ntalk\nask") || env.queries.Agent() != p {
		t.Errorf("the next query: %q, of the same process: %v", text, env.queries.Agent() == p)
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
		if len(ends) != 1 || ends[0].Reason != runnerscripts.ReasonCancelled {
			t.Errorf("%s: request %s was resolved as %+v", name, id, ends)
		}
	}
}
