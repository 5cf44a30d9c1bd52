package claude

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

const (
	unaskedPatience = 3 * time.Minute // far above the time that a test needs; a hang fails then
	untilGo         = "until [ -e go ]; do sleep 0.1; done"
)

// leaveBehind runs a query that leaves a background command, which ends when the workspace has a
// file named "go".
func (f *fixture) leaveBehind(c agent.Conversation) runnerscripts.QueryCompleted {
	f.Helper()
	return f.Prompt(c, "call-tool `Bash {\"command\":\""+untilGo+"\",\"run_in_background\":true}`")
}

// wakeUp ends that command and waits until the program has finished the turn that this triggers.
func (f *fixture) wakeUp(c agent.Conversation) {
	f.Helper()
	if err := os.WriteFile(f.WorkspaceFile("go"), nil, 0o600); err != nil {
		f.Fatal(err)
	}
	conv := c.(*conversation)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(unaskedPatience); time.Now().Before(end); <-tick.C {
		conv.mu.Lock()
		done := conv.unasked.usage != runnerscripts.Usage{} && conv.state == stateIdle
		conv.mu.Unlock()
		if done {
			return
		}
	}
	f.Fatal("the program was not woken up")
}

func TestAnUnpromptedTurnCountsForTheNextQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	c := f.Start()
	got := f.leaveBehind(c).Usage
	asked := len(f.API.Requests())
	f.wakeUp(c)
	if len(f.API.Requests()) == asked {
		t.Fatal("the model was not asked")
	}
	got = got.Add(f.Prompt(c, "plain-text").Usage)
	got = got.Add(f.Prompt(c, "plain-text").Usage) // a second query counts nothing twice
	want := f.UsageAfter(0)
	got.CostUSD = 0
	if got != want {
		t.Errorf("usage\n got %+v\nwant %+v", got, want)
	}
}

func TestABudgetHoldsOnWhenItsQueryHasEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	f.Profile.BudgetUSD = 0.05
	f.SetUp()
	c := f.Start()
	if done := f.Prompt(c, "wake-up `"+untilGo+"`"); done.StopReason != runnerscripts.StopEndTurn || done.Usage.CostUSD >= f.Profile.BudgetUSD {
		t.Fatalf("the query ended with %+v", done)
	}
	f.wakeUp(c) // the turn would not end by itself
	if logs := f.logs("warn"); len(logs) != 1 || !strings.Contains(logs[0], "in the background") {
		t.Errorf("logs: %q", logs)
	}
	conv := c.(*conversation)
	conv.mu.Lock()
	if conv.unasked.overBudget {
		t.Error("the next such turn would not be stopped")
	}
	conv.mu.Unlock()
	if done := f.Prompt(c, "plain-text"); done.StopReason != runnerscripts.StopEndTurn || done.Usage.CostUSD < f.Profile.BudgetUSD/2 {
		t.Errorf("the next query ended with %+v", done)
	}
}

func TestWhatATurnHasCostIsNoReasonToStopTheNextOne(t *testing.T) {
	t.Parallel()
	c, out, err := startProgram(t, answering(t, "exec cat >/dev/null"))
	if err != nil {
		t.Fatal(err)
	}
	c.profile.BudgetUSD = 0.05
	c.stateIs("running")
	c.keepBudget(0, 1)
	c.turnEnded(resultLine{})
	c.keepBudget(0, 1) // requested before the result
	c.stateIs(stateIdle)
	if n := len(agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)); n != 1 {
		t.Errorf("%d warnings", n)
	}
	c.stateIs("running")
	c.keepBudget(1, 1)
	if n := len(agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)); n != 2 {
		t.Error("the next one was not stopped")
	}
}

// A query whose schema restarts the program belongs to the new process, although the old one may finish a turn first. An
// interrupt during that turn is for the new process, too.
func TestATurnOfTheProcessBeforeARestartIsNotTheQuery(t *testing.T) {
	t.Parallel()
	restarted := filepath.Join(t.TempDir(), "restarted")
	c, out, err := startProgram(t, answering(t, `turn() {
	echo '{"type":"system","subtype":"session_state_changed","state":"running"}'
	echo '{"type":"system","subtype":"init","permissionMode":"'$1'"}'
	[ $1 != new ] || read -r interrupt
	echo '{"type":"result","subtype":"success","is_error":false,"result":"","structured_output":{"of":"'$1'"},"modelUsage":{"m":{"inputTokens":'$2'}}}'
	echo '{"type":"system","subtype":"session_state_changed","state":"idle"}'
}
read -r prompt
if mkdir '`+restarted+`' 2>/dev/null; then
	turn first 5
	cat >/dev/null
	turn old 12
else
	turn new 3
	cat >/dev/null
fi`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prompt(t.Context(), "q", "hello"); err != nil {
		t.Fatal(err)
	}
	c.out = hooked{Recorder: out, hook: func() {
		c.mu.Lock()
		old := c.mode == "old"
		c.mu.Unlock()
		if old {
			if err := c.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}}
	c.BindOutput(lineSchema)
	ctx, cancel := context.WithTimeout(t.Context(), unaskedPatience)
	defer cancel()
	done, err := c.Prompt(ctx, "q", "hello")
	if err != nil || string(done.ResultData) != `{"of":"new"}` || done.Usage.InputTokens != 12-5+3 {
		t.Errorf("ended with %+v, output %s, %v", done, done.ResultData, err)
	}
}
