package codex

import (
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
)

// testModel is a model of Codex's own catalogue, so that Codex offers all its tools.
const testModel = "gpt-5.5"

// fixture is a session of the real Codex with a scripted model.
type fixture struct{ *drivertest.Fixture }

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	testleak.Main(m)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{drivertest.New(t, Driver{ending: untilHang}, agentName)}
	f.StartModel()
	f.Session.Agent.Command = []string{testagents.Codex(t)}
	f.Session.Agent.Model = testModel
	f.Session.Agent.Env = map[string]string{envBaseURL: f.API.URL + "/v1", envKey: "test-key"}
	// One retry is enough to test retries.
	f.Session.Agent.Config = []byte(`{"model_providers":{"openai-key":{"request_max_retries":1,"stream_max_retries":1}}}`)
	return f
}

// start sets the session up and starts the conversation. It closes the conversation at the end of
// the test.
func (f *fixture) start() agent.Conversation {
	f.Helper()
	f.SetUp()
	return f.Start()
}

// promptAndAnswer runs a query and answers each of its permission requests with d. It returns the
// number of requests.
func (f *fixture) promptAndAnswer(c agent.Conversation, text string, d runnerscripts.PermissionDecision) int {
	f.Helper()
	before := len(f.Out.All())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Prompt(f.Context(), "query", text)
		f.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionIdle, struct{}{})
		ended <- err
	}()
	for seen, asked := before, 0; ; {
		n := 0
		e := f.Out.Wait(f.Context(), f, func(e runnerscripts.Event) bool {
			n++
			return n > seen && (e.Type == runnerscripts.TypePermissionRequest || e.Type == runnerscripts.TypeSessionIdle)
		})
		seen = n
		if e.Type == runnerscripts.TypeSessionIdle {
			if err := <-ended; err != nil {
				f.Fatalf("prompt %q: %v", text, err)
			}
			return asked
		}
		asked++
		req := agenttest.Payload[runnerscripts.PermissionRequest](f, e)
		if err := c.Respond(f.Context(), req.ID, d); err != nil {
			f.Fatal(err)
		}
	}
}

// waitForFile waits until a file is in the workspace.
func (f *fixture) waitForFile(name string) {
	f.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !f.Exists(name); <-tick.C {
		if time.Now().After(end) {
			f.Fatalf("there is still no %s", name)
		}
	}
}
