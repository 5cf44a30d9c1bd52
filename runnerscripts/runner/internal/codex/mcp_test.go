package codex

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const callAdd = "call-tool `mcp__calc/add {\"a\":2,\"b\":3}`"

func TestToolOfAnMCPServerAsksAndIsCalled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind   runnerscripts.PermissionKind
		status runnerscripts.ToolStatus
		told   string
		asked  int // in two prompts
	}{
		{runnerscripts.AllowOnce, runnerscripts.ToolCompleted, "the sum is 5", 2},
		{runnerscripts.AllowAlways, runnerscripts.ToolCompleted, "the sum is 5", 1},
		{runnerscripts.RejectOnce, runnerscripts.ToolFailed, "rejected", 2},
	} {
		t.Run(string(tt.kind), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			calc := agenttest.StdioMCP(t, "calc")
			f.Profile.MCPServers = []runnerscripts.MCPServer{calc.Server}
			c := f.start()
			asked := 0
			for range 2 {
				asked += f.promptAndAnswer(c, callAdd, runnerscripts.PermissionDecision{Kind: tt.kind})
				if got := strings.Join(f.LastRequest().Results, " "); !strings.Contains(got, tt.told) {
					t.Errorf("the model was told %q", got)
				}
			}
			if asked != tt.asked {
				t.Errorf("asked %d times", asked)
			}
			if called := len(calc.Calls()) > 0; called != tt.kind.Allows() {
				t.Errorf("called: %v", called)
			}
			call := agenttest.Fold(t, f.Out.All()).Blocks[2].Tool
			if call == nil || call.Name != "calc/add" || call.Status != tt.status || string(call.RawInput) != `{"a":2,"b":3}` {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			if tt.kind.Allows() && (len(call.Content) != 1 || call.Content[0].Content.Text != "the sum is 5") {
				t.Errorf("content: %s", agenttest.Show(t, call.Content))
			}
			f.SameAsTranscript()
		})
	}
}

func TestMCPServersThatDoNotStartAreToldAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	f.Session.Agent.Config = []byte(`{"mcp_servers":{"configured":{"command":"/no/such/program"}},` + string(f.Session.Agent.Config[1:]))
	f.Profile.MCPServers = []runnerscripts.MCPServer{
		{Name: "missing", Command: []string{"/no/such/program"}},
		{Name: "ends", Command: []string{"/bin/sh", "-c", "exit 3"}},
		{Name: "unreachable", URL: "http://127.0.0.1:1/mcp"},
	}
	c := f.start()
	f.Prompt(c, "subagent") // the subagent starts the servers again
	if done := f.Prompt(c, "plain-text"); done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	for _, name := range []string{"configured", "missing", "ends", "unreachable"} {
		told := 0
		for _, l := range agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog) {
			if l.Level == "error" && strings.Contains(l.Message, `"`+name+`"`) {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%s: told %d times", name, told)
		}
	}
}

func TestInterruptDoesNotWaitForAnMCPServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Profile.MCPServers = []runnerscripts.MCPServer{{Name: "hangs", Command: []string{"/bin/sh", "-c", "exec cat >/dev/null"}}}
	c := f.start()
	wait := f.PromptAsync(c, "plain-text")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(untilHang); !c.(*conversation).turnRuns(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the turn does not start")
		}
	}
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %+v, %v", done, err)
	}
	if len(f.API.Requests()) != 0 {
		t.Error("the model was asked")
	}
}

// turnRuns reports whether the turn of a query has started.
func (c *conversation) turnRuns() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.query != nil && c.query.turn != ""
}
