package claude

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	goleak.VerifyTestMain(m)
}

// fixture is a session of the real Claude Code with a scripted model.
type fixture struct {
	t       *testing.T
	api     *llmapi.Server
	session runnerscripts.Session
	profile runnerscripts.Profile
	out     *agenttest.Recorder
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
	f := &fixture{t: t, api: api, session: agenttest.NewSession(t, agent.NewUUID(), programName), out: agenttest.NewRecorder()}
	f.session.Agent.Command = []string{testagents.Claude(t)}
	f.session.Agent.Env = map[string]string{
		"ANTHROPIC_BASE_URL":      api.URL,
		"ANTHROPIC_API_KEY":       "test-key",
		"CLAUDE_CODE_MAX_RETRIES": "1",
	}
	return f
}

// start starts the conversation; it is closed at the end of the test.
func (f *fixture) start() agent.Conversation {
	f.t.Helper()
	c, err := Driver{}.Start(f.t.Context(), runnerscripts.QueryRequest{Session: f.session, Profile: f.profile}, f.out)
	if err != nil {
		f.t.Fatalf("start: %v", err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			f.t.Errorf("close: %v", err)
		}
	})
	return c
}

// setup writes the profile.
func (f *fixture) setup() {
	f.t.Helper()
	if _, err := (Driver{}).Setup(f.t.Context(), runnerscripts.SetupRequest{Session: f.session, Profile: f.profile}); err != nil {
		f.t.Fatalf("setup: %v", err)
	}
}

// homeFile returns the path of a file in the session's home.
func (f *fixture) homeFile(name string) string { return filepath.Join(f.session.Paths.Home, name) }

// nothingAsked fails the test if there was a permission request.
func (f *fixture) nothingAsked() {
	f.t.Helper()
	for _, r := range agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.out.All(), runnerscripts.TypePermissionRequest) {
		f.t.Errorf("asked for %s", r.ToolCall.Title)
	}
}

// logs returns the messages of the logs of that level.
func (f *fixture) logs(level string) []string {
	var list []string
	for _, l := range agenttest.Payloads[runnerscripts.Log](f.t, f.out.All(), runnerscripts.TypeLog) {
		if l.Level == level {
			list = append(list, l.Message)
		}
	}
	return list
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

// promptAsync runs a query in the background. The returned function waits for its end.
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

// workspaceFile returns the path of a file in the workspace.
func (f *fixture) workspaceFile(name string) string {
	return filepath.Join(f.session.Paths.Workspace, name)
}

func (f *fixture) exists(name string) bool {
	_, err := os.Stat(f.workspaceFile(name))
	return err == nil
}

// transcript reads the history and its events.
func (f *fixture) transcript() (runnerscripts.Transcript, *agenttest.Recorder) {
	f.t.Helper()
	out := agenttest.NewRecorder()
	tr, err := Driver{}.Transcript(f.t.Context(), runnerscripts.TranscriptRequest{Session: f.session, Events: true}, out)
	if err != nil {
		f.t.Fatalf("read the transcript: %v", err)
	}
	return tr, out
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
