package codex

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// testModel is a model of Codex's own catalogue, so that Codex offers all its tools.
const testModel = "gpt-5.5"

// fixture is a session of the real Codex with a scripted model.
type fixture struct {
	t       *testing.T
	api     *llmapi.Server
	session runnerscripts.Session
	profile runnerscripts.Profile
	out     *agenttest.Recorder
}

func TestMain(m *testing.M) {
	if agenttest.ServeMCP() {
		return
	}
	goleak.VerifyTestMain(m)
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
	f := &fixture{t: t, api: api, session: agenttest.NewSession(t, agent.NewUUID(), agentName), out: agenttest.NewRecorder()}
	f.session.Agent.Command = []string{testagents.Codex(t)}
	f.session.Agent.Model = testModel
	f.session.Agent.Env = map[string]string{envBaseURL: api.URL + "/v1", envKey: "test-key"}
	// One retry is enough to test retries.
	f.session.Agent.Config = []byte(`{"model_providers":{"openai-key":{"request_max_retries":1,"stream_max_retries":1}}}`)
	return f
}

// start sets the session up and starts the conversation. It closes the conversation at the end of
// the test.
func (f *fixture) start() agent.Conversation {
	f.t.Helper()
	if _, err := (Driver{}).Setup(f.t.Context(), runnerscripts.SetupRequest{Session: f.session, Profile: f.profile}); err != nil {
		f.t.Fatalf("set up: %v", err)
	}
	return f.startAgain()
}

// startAgain starts the conversation of a session that is set up.
func (f *fixture) startAgain() agent.Conversation {
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
	e := f.out.Wait(f.t.Context(), f.t, agenttest.OfType(runnerscripts.TypePermissionRequest))
	return agenttest.Payload[runnerscripts.PermissionRequest](f.t, e)
}

// answer answers the first permission request.
func (f *fixture) answer(c agent.Conversation, d runnerscripts.PermissionDecision) {
	f.t.Helper()
	if err := c.Respond(f.t.Context(), f.asked().ID, d); err != nil {
		f.t.Fatal(err)
	}
}

// promptAndAnswer runs a query and answers each of its permission requests with d. It returns the
// number of requests.
func (f *fixture) promptAndAnswer(c agent.Conversation, text string, d runnerscripts.PermissionDecision) int {
	f.t.Helper()
	before := len(f.out.All())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Prompt(f.t.Context(), "query", text)
		f.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeSessionIdle, struct{}{})
		ended <- err
	}()
	for seen, asked := before, 0; ; {
		n := 0
		e := f.out.Wait(f.t.Context(), f.t, func(e runnerscripts.Event) bool {
			n++
			return n > seen && (e.Type == runnerscripts.TypePermissionRequest || e.Type == runnerscripts.TypeSessionIdle)
		})
		seen = n
		if e.Type == runnerscripts.TypeSessionIdle {
			if err := <-ended; err != nil {
				f.t.Fatalf("prompt %q: %v", text, err)
			}
			return asked
		}
		asked++
		req := agenttest.Payload[runnerscripts.PermissionRequest](f.t, e)
		if err := c.Respond(f.t.Context(), req.ID, d); err != nil {
			f.t.Fatal(err)
		}
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

// sameAsTranscript fails unless the reported conversation is the one in the transcript.
func (f *fixture) sameAsTranscript() {
	f.t.Helper()
	_, stored := f.transcript()
	agenttest.SameConversation(f.t, f.out.All(), stored.All())
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

// waitForFile waits until a file is in the workspace.
func (f *fixture) waitForFile(name string) {
	f.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !f.exists(name); <-tick.C {
		if time.Now().After(end) {
			f.t.Fatalf("there is still no %s", name)
		}
	}
}

// waitForEnd waits until a process has ended that is not a child of the test.
func waitForEnd(t *testing.T, pid string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		status, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Errorf("the process %s still runs", pid)
			return
		}
	}
}
