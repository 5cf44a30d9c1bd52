package environment

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestABudgetEndsAQuery checks that a query ends when the agent uses up a limit, and that the
// error says how much the agent has used.
func TestABudgetEndsAQuery(t *testing.T) {
	t.Parallel()
	cfg := otherAgents()[1].local(t, keyedModel(t))
	cfg.Budget = Budget{Query: Limits{Tokens: 1}, Prices: prices()}
	env := create(t, cfg)
	failed := endsAtLimit(t, env, twoCalls, "tokens")
	if used := env.Used(); used.TotalInput() == 0 || used.Requests == 0 || used.Time <= 0 || failed.Usage.TotalInput() == 0 || failed.Usage.CostUSD == 0 {
		t.Errorf("the session has used %+v, the query %+v", used, failed.Usage)
	}
	if again, err := kept.Find(cfg.Sandbox.Type, env.ID()); err != nil || again.Used != env.Used() {
		t.Errorf("what it has used is not remembered: %+v, %v", again, err)
	}
	if got := listed(t, cfg.Sandbox, env.ID()); got.Usage != failed.Usage {
		t.Errorf("the list says %+v; the query has used %+v", got, failed.Usage)
	}
}

// endsAtLimit runs a query that must end at a limit of its budget, and returns its failure.
func endsAtLimit(t *testing.T, env *Environment, prompt, limit string) *runnerscripts.QueryFailed {
	t.Helper()
	return endsAtLimitOf(t, env, Query{Prompt: prompt}, limit)
}

// endsAtLimitOf is endsAtLimit for a query.
func endsAtLimitOf(t *testing.T, env *Environment, q Query, limit string) *runnerscripts.QueryFailed {
	t.Helper()
	events, err := collect(t.Context(), env, q)
	over, ok := errors.AsType[*BudgetError](err)
	if !ok || over.Scope != "query" || over.Limit != limit {
		t.Fatalf("the error is %v", err)
	}
	failed, ok := events[len(events)-1].Value().(*runnerscripts.QueryFailed)
	if !ok || failed.Code != runnerscripts.FailBudget || !strings.Contains(failed.Message, "budget.query."+limit) {
		t.Fatalf("the last event is %+v", events[len(events)-1])
	}
	return failed
}

// TestTheUserMayRaiseABudget checks that the user is asked at the limit, and that the query
// continues or ends.
func TestTheUserMayRaiseABudget(t *testing.T) {
	t.Parallel()
	cfg := otherAgents()[1].local(t, keyedModel(t))
	cfg.Budget = Budget{Session: Limits{Requests: 2}, Ask: true} // what one query needs
	var asked []PermissionRequest
	cfg.OnPermission = func(_ context.Context, req PermissionRequest) PermissionDecision {
		asked = append(asked, req)
		if len(asked) == 1 {
			return req.Allow()
		}
		return req.Reject("")
	}
	env := create(t, cfg)
	for n, want := range []string{"", "answered allow_once", "answered reject_once"} {
		events, err := collect(t.Context(), env, Query{Prompt: twoCalls})
		if limit, ok := errors.AsType[*BudgetError](err); ok != (n == 2) || !ok && err != nil || ok && (limit.Limit != "requests" || limit.Used.Requests != 4) {
			t.Fatalf("query %d: %v", n, err)
		}
		got := ""
		for _, ev := range events {
			if done, ok := ev.Value().(*runnerscripts.PermissionResolved); ok {
				got += done.Reason + " " + string(done.Kind)
			}
		}
		if got != want {
			t.Errorf("query %d: the requests ended with %q; want %q", n, got, want)
		}
	}
	if len(asked) != 2 || asked[0].ToolCall.Title != "The session's budget of 2 requests is used up" || asked[0].Options[0].Name != "Allow another 2 requests" {
		t.Errorf("asked %+v", asked)
	}
}

// TestAQueryThatTakesTooLong checks that such a query ends with an error, and that the time of
// the next query counts from zero.
func TestAQueryThatTakesTooLong(t *testing.T) {
	t.Parallel()
	cfg := Config{Sandbox: sandbox(t), Agent: scenario(t, runnerscripts.ScenarioTurn{Steps: []runnerscripts.ScenarioStep{{DelayMS: 3_600_000}}}), Budget: Budget{Query: Limits{Time: 100 * time.Millisecond}}}
	env := create(t, cfg)
	for range 2 {
		_, err := env.Run(t.Context(), "go")
		limit, ok := errors.AsType[*BudgetError](err)
		failed, isFailed := errors.AsType[*QueryError](err)
		if !ok || !isFailed || limit.Limit != "time" || failed.Failure.Code != runnerscripts.FailTimeout {
			t.Fatalf("the error is %v", err)
		}
	}
}

// TestABudgetEndsAStart checks the error of a query whose time is used up before its agent runs.
func TestABudgetEndsAStart(t *testing.T) {
	t.Parallel()
	p := newBare(t)
	env := newOver(t, p, Config{Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(patient)}, Budget: Budget{Query: Limits{Time: time.Millisecond}}})
	p.exec = func(starting context.Context) error {
		<-starting.Done()
		return starting.Err()
	}
	_, err := env.Run(t.Context(), "go")
	limit, ok := errors.AsType[*BudgetError](err)
	failed, isFailed := errors.AsType[*QueryError](err)
	if !ok || !isFailed || limit.Limit != "time" || failed.Failure.Code != runnerscripts.FailTimeout {
		t.Fatalf("the error is %v", err)
	}
	if err.Error() != failed.Error() {
		t.Errorf("%q says more than that the query failed: %q", err, failed)
	}
}

func TestABudgetNeedsCredentials(t *testing.T) {
	t.Parallel()
	cfg := Config{Sandbox: sandbox(t), Agent: Agent{Name: "script"}, Budget: Budget{Query: Limits{USD: 1}}}
	if err := cfg.Check(t.Context()); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "give credentials") {
		t.Errorf("%v", err)
	}
}
