package opencode

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
	"github.com/agentenv-dev/agentenv/session"
)

// TestMain runs the test binary as an MCP server or a fake server if a test has started it as one.
func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	if behaviour := os.Getenv(fakeVariable); behaviour != "" {
		fakeProgram(behaviour)
		return
	}
	testleak.Main(m)
}

const (
	testModel   = "scripted/small"
	secondModel = "scripted/large"
)

// fixture is a session of the real OpenCode with a scripted model.
type fixture struct {
	*drivertest.Fixture
	driver *Driver
}

// step is a part of a test. The steps share a conversation, because a start takes seconds.
type step struct {
	name  string
	check func(f *fixture, c *conversation)
}

// each runs the steps in order, and checks that the transcript has the same conversation.
func (f *fixture) each(t *testing.T, c *conversation, steps []step) {
	for _, p := range steps {
		t.Run(p.name, func(t *testing.T) { p.check(f.in(t), c) })
	}
	t.Run("the transcript has the same conversation", func(t *testing.T) { f.in(t).SameAsTranscript() })
}

// in returns the fixture for a step.
func (f *fixture) in(t testing.TB) *fixture { return &fixture{f.In(t), f.driver} }

// wait waits for an event of this step.
func (f *fixture) wait(fits func(runnerscripts.Event) bool) runnerscripts.Event {
	f.Helper()
	return f.Wait(f.Context(), fits)
}

// blocks returns the conversation's blocks of this step.
func (f *fixture) blocks() []*session.Block {
	f.Helper()
	return agenttest.Fold(f, f.Events()).Blocks
}

// call returns the tool call of this step: it follows the prompt and a text.
func (f *fixture) call() *runnerscripts.ToolCall {
	f.Helper()
	blocks := f.blocks()
	if len(blocks) < 3 || blocks[2].Tool == nil {
		f.Fatalf("blocks: %s", agenttest.Show(f, blocks))
	}
	return blocks[2].Tool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	// One retry is enough to test retries. A test must not fail because the machine is busy.
	f := newSession(t, Driver{retries: 1, patience: 15 * time.Minute, silence: 15 * time.Minute})
	f.StartModel()
	f.Session.Agent.Command = []string{testagents.OpenCode(t)}
	f.Session.Agent.Model = testModel
	f.Session.Agent.Config = scriptedProvider(f.API.URL)
	return f
}

// newSession returns a session without a program.
func newSession(t *testing.T, d Driver) *fixture {
	t.Helper()
	return &fixture{drivertest.New(t, &d, programName), &d}
}

// tryStart starts a conversation. The cleanup of the test closes it.
func (f *fixture) tryStart() (*conversation, error) {
	c, err := f.TryStart()
	if err != nil {
		return nil, err
	}
	return c.(*conversation), nil
}

// scriptedProvider returns the configuration of a provider that serves the scripted model.
func scriptedProvider(url string) []byte {
	const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"cost":{"input":1,"output":2}}`
	return fmt.Appendf(nil, `{"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible",`+
		`"options":{"baseURL":"%s/v1","apiKey":"test-key"},"models":{"small":%s,"large":%s}}}}`, url, model, model)
}

// start starts a conversation. The cleanup of the test closes it.
func (f *fixture) start() *conversation {
	f.Helper()
	c, err := f.tryStart()
	if err != nil {
		f.Fatalf("start: %v", err)
	}
	return c
}

// held waits until the model pauses in the middle of its answer, and the agent has reported the
// beginning of the answer.
func (f *fixture) held(typ runnerscripts.EventType) {
	f.Helper()
	if err := f.API.WaitHeld(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.wait(agenttest.OfType(typ))
}

// offline returns a conversation without a server. The test provides the events.
func offline(out *agenttest.Recorder, sessionID string) *conversation {
	c := &conversation{
		session:     runnerscripts.Session{Paths: primitives.PathsIn("/session")},
		out:         out,
		retries:     maxRetries,
		translate:   newTranslator(out, "/session/workspace"),
		deferred:    map[string][]event{},
		permissions: agent.Permissions[question]{Out: out}, early: map[string]question{},
		id:   sessionID,
		mode: modeBuild,
		over: true, // there is no server for requests
	}
	c.translate.conversations[sessionID] = runnerscripts.MainConversation
	return c
}
