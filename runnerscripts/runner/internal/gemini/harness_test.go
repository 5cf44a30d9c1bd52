package gemini

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	if dir, ok := os.LookupEnv(replayVariable); ok {
		if err := runReplay(os.Stdin, os.Stdout, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const testModel = "gemini-2.5-pro"

// fixture is a session of the real Gemini CLI with a scripted model.
type fixture struct {
	t       *testing.T
	api     *llmapi.Server
	session runnerscripts.Session
	profile runnerscripts.Profile
	out     *agenttest.Recorder
	raw     bool
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
		t: t, api: api, session: agenttest.NewSession(t, agent.NewUUID(), programName), out: agenttest.NewRecorder(),
	}
	f.session.Agent.Command = []string{testagents.Gemini(t)}
	f.session.Agent.Model = testModel
	f.session.Agent.Env = map[string]string{
		"GOOGLE_GEMINI_BASE_URL": api.URL,
		"GEMINI_API_KEY":         "test-key",
	}
	return f
}

// start starts the conversation, and closes it at the end of the test.
func (f *fixture) start() agent.Conversation {
	f.t.Helper()
	return f.startWith(f.out)
}

// startWith is like start, but with another sink.
func (f *fixture) startWith(out agent.Sink) agent.Conversation {
	f.t.Helper()
	c, err := Driver{}.Start(f.t.Context(), runnerscripts.QueryRequest{Session: f.session, Profile: f.profile, Raw: f.raw}, out)
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

// prompt runs a query that must not fail.
func (f *fixture) prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	f.t.Helper()
	done, err := c.Prompt(f.t.Context(), "query", text)
	if err != nil {
		f.t.Fatalf("prompt %q: %v", text, err)
	}
	return done
}

// promptAsync starts a query and returns a function that waits for its end.
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

// asked waits for the first permission request and returns it.
func (f *fixture) asked() runnerscripts.PermissionRequest {
	f.t.Helper()
	return f.askedAgain(0)
}

// askedAgain waits for the permission request after n others and returns it.
func (f *fixture) askedAgain(n int) runnerscripts.PermissionRequest {
	f.t.Helper()
	f.out.Wait(f.t.Context(), f.t, func(runnerscripts.Event) bool { return len(f.requests()) > n })
	return f.requests()[n]
}

func (f *fixture) requests() []runnerscripts.PermissionRequest {
	f.t.Helper()
	return agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.out.All(), runnerscripts.TypePermissionRequest)
}

// lastCall returns the last tool call.
func (f *fixture) lastCall() runnerscripts.ToolCall {
	f.t.Helper()
	for _, b := range slices.Backward(agenttest.Fold(f.t, f.out.All()).Blocks) {
		if b.Tool != nil {
			return *b.Tool
		}
	}
	f.t.Fatal("no tool was called")
	return runnerscripts.ToolCall{}
}

func (f *fixture) workspaceFile(name string) string {
	return filepath.Join(f.session.Paths.Workspace, name)
}

func (f *fixture) exists(name string) bool {
	_, err := os.Stat(f.workspaceFile(name))
	return err == nil
}

// transcript returns the stored history and its events.
func (f *fixture) transcript() (runnerscripts.Transcript, *agenttest.Recorder) {
	f.t.Helper()
	out := agenttest.NewRecorder()
	tr, err := Driver{}.Transcript(f.t.Context(), runnerscripts.TranscriptRequest{Session: f.session, Events: true}, out)
	if err != nil {
		f.t.Fatalf("read the transcript: %v", err)
	}
	return tr, out
}

// lastRequest returns the agent's last request to the model.
func (f *fixture) lastRequest() llmapi.Request {
	f.t.Helper()
	all := f.api.Requests()
	if len(all) == 0 {
		f.t.Fatal("the model was asked nothing")
	}
	return all[len(all)-1]
}
