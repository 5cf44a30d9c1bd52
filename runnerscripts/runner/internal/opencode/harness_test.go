package opencode

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
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
	goleak.VerifyTestMain(m)
}

const (
	testModel   = "scripted/small"
	secondModel = "scripted/large"
)

// fixture is a session of the real OpenCode with a scripted model.
type fixture struct {
	t       *testing.T
	api     *llmapi.Server
	driver  Driver
	session runnerscripts.Session
	profile runnerscripts.Profile
	raw     bool
	out     *agenttest.Recorder
	mark    int // the number of events before this step
}

// step is a part of a test. The steps share a conversation, because a start takes seconds.
type step struct {
	name  string
	check func(f *fixture, c *conversation)
}

// each runs the steps in order, and checks that the transcript has the same conversation.
func (f *fixture) each(c *conversation, steps []step) {
	for _, p := range steps {
		f.t.Run(p.name, func(t *testing.T) { p.check(f.in(t), c) })
	}
	f.t.Run("the transcript has the same conversation", func(t *testing.T) { f.in(t).sameAsTranscript() })
}

// in returns the fixture for a step.
func (f *fixture) in(t *testing.T) *fixture {
	g := *f
	g.t, g.mark = t, len(f.out.All())
	return &g
}

// events returns the events of this step.
func (f *fixture) events() []runnerscripts.Event { return f.out.All()[f.mark:] }

// wait waits for an event of this step.
func (f *fixture) wait(fits func(runnerscripts.Event) bool) runnerscripts.Event {
	f.t.Helper()
	n := 0
	return f.out.Wait(f.t.Context(), f.t, func(e runnerscripts.Event) bool {
		n++
		return n > f.mark && fits(e)
	})
}

// blocks returns the conversation's blocks of this step.
func (f *fixture) blocks() []*session.Block {
	f.t.Helper()
	return agenttest.Fold(f.t, f.events()).Blocks
}

// call returns the tool call of this step: it follows the prompt and a text.
func (f *fixture) call() *runnerscripts.ToolCall {
	f.t.Helper()
	blocks := f.blocks()
	if len(blocks) < 3 || blocks[2].Tool == nil {
		f.t.Fatalf("blocks: %s", agenttest.Show(f.t, blocks))
	}
	return blocks[2].Tool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Errorf("close the model: %v", err)
		}
	})
	f := &fixture{
		// One retry is enough to test retries. A test must not fail because the machine is busy.
		t: t, api: api, driver: Driver{retries: 1, patience: 15 * time.Minute, silence: 15 * time.Minute},
		session: agenttest.NewSession(t, agent.NewUUID(), programName), out: agenttest.NewRecorder(),
	}
	f.session.Agent.Command = []string{testagents.OpenCode(t)}
	f.session.Agent.Model = testModel
	f.session.Agent.Config = scriptedProvider(api.URL)
	return f
}

// scriptedProvider returns the configuration of a provider that serves the scripted model.
func scriptedProvider(url string) []byte {
	const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"cost":{"input":1,"output":2}}`
	return fmt.Appendf(nil, `{"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible",`+
		`"options":{"baseURL":"%s/v1","apiKey":"test-key"},"models":{"small":%s,"large":%s}}}}`, url, model, model)
}

// start starts a conversation. The cleanup of the test closes it.
func (f *fixture) start() *conversation {
	f.t.Helper()
	c, err := f.driver.Start(f.t.Context(), runnerscripts.QueryRequest{
		Session: f.session, Profile: f.profile, Raw: f.raw,
	}, f.out)
	if err != nil {
		f.t.Fatalf("start: %v", err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			f.t.Errorf("close: %v", err)
		}
	})
	return c.(*conversation)
}

// prompt runs a query that must not fail.
func (f *fixture) prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	f.t.Helper()
	done, err := c.Prompt(f.t.Context(), "query", text)
	if err != nil {
		f.t.Fatalf("prompt %q: %v", text, err)
	}
	return done
}

// promptAsync runs a query while the test does something else.
func (f *fixture) promptAsync(c agent.Conversation, text string) func() (runnerscripts.QueryCompleted, error) {
	type outcome struct {
		done runnerscripts.QueryCompleted
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		done, err := c.Prompt(f.t.Context(), "query", text)
		result <- outcome{done, err}
	}()
	return func() (runnerscripts.QueryCompleted, error) {
		o := <-result
		return o.done, o.err
	}
}

// asked waits for the first permission request.
func (f *fixture) asked() runnerscripts.PermissionRequest {
	f.t.Helper()
	e := f.wait(agenttest.OfType(runnerscripts.TypePermissionRequest))
	return agenttest.Payload[runnerscripts.PermissionRequest](f.t, e)
}

// answer answers the first permission request.
func (f *fixture) answer(c agent.Conversation, d runnerscripts.PermissionDecision) {
	f.t.Helper()
	if err := c.Respond(f.t.Context(), f.asked().ID, d); err != nil {
		f.t.Fatal(err)
	}
}

// held waits until the model pauses in the middle of its answer, and the agent has reported the
// beginning of the answer.
func (f *fixture) held(typ runnerscripts.EventType) {
	f.t.Helper()
	if err := f.api.WaitHeld(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.wait(agenttest.OfType(typ))
}

// workspaceFile returns the path of a file in the workspace.
func (f *fixture) workspaceFile(name string) string {
	return filepath.Join(f.session.Paths.Workspace, name)
}

func (f *fixture) exists(name string) bool {
	_, err := os.Stat(f.workspaceFile(name))
	return err == nil
}

// transcript reads the history back, with its events.
func (f *fixture) transcript() (runnerscripts.Transcript, *agenttest.Recorder) {
	f.t.Helper()
	out := agenttest.NewRecorder()
	tr, err := f.driver.Transcript(f.t.Context(), runnerscripts.TranscriptRequest{Session: f.session, Events: true}, out)
	if err != nil {
		f.t.Fatalf("read the transcript: %v", err)
	}
	return tr, out
}

// sameAsTranscript fails unless the transcript has the same conversation.
func (f *fixture) sameAsTranscript() {
	f.t.Helper()
	_, stored := f.transcript()
	agenttest.SameConversation(f.t, f.out.All(), stored.All())
}

// lastRequest returns the last request of the agent to the model.
func (f *fixture) lastRequest() llmapi.Request {
	f.t.Helper()
	all := f.api.Requests()
	if len(all) == 0 {
		f.t.Fatal("the model was asked nothing")
	}
	return all[len(all)-1]
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
