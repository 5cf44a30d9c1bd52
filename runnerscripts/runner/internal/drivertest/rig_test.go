package drivertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one case with one agent: a session of the real program, with a scripted model.
type rig struct {
	testing.TB
	subject
	patience time.Duration // how long one step may take
	api      *llmapi.Server
	session  runnerscripts.Session
	starts   string // a file with the process id of each start of the program, one a line
	out      *agenttest.Recorder
}

func newRig(t testing.TB, s subject, patience time.Duration) *rig {
	t.Helper()
	r := &rig{TB: t, subject: s, patience: patience, out: agenttest.NewRecorder()}
	r.session = agenttest.NewSession(t, agent.NewUUID(), s.name)
	return r
}

// real makes the pinned program the session's, with a scripted model.
func (r *rig) real() {
	r.Helper()
	api, err := llmapi.Start(r.Context(), llmapi.Config{})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := api.Close(); err != nil {
			r.Errorf("close the model: %v", err)
		}
	})
	r.api, r.starts = api, filepath.Join(r.TempDir(), "starts")
	r.model(&r.session.Agent, api.URL)
	r.session.Agent.Command = []string{"/bin/sh", "-c", `echo $$ >>` + r.starts + `; exec "$@"`, "sh", r.find(r)}
	if _, err := r.driver.Setup(r.Context(), runnerscripts.SetupRequest{Session: r.session}); err != nil {
		r.Fatalf("set up: %v", err)
	}
	if err := os.Remove(r.starts); err != nil && !os.IsNotExist(err) { // to tell its version
		r.Fatal(err)
	}
}

// start starts the conversation, which the end of the case closes.
func (r *rig) start() agent.Conversation {
	r.Helper()
	c, err := r.driver.Start(r.Context(), runnerscripts.QueryRequest{Session: r.session}, r.out)
	if err != nil {
		r.Fatalf("start: %v", err)
	}
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Errorf("close: %v", err)
		}
	})
	return c
}

// pids are the process ids of the starts of the program.
func (r *rig) pids() (list []int) {
	r.Helper()
	data, err := os.ReadFile(r.starts)
	if err != nil {
		r.Fatal(err)
	}
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			r.Fatal(err)
		}
		list = append(list, pid)
	}
	return list
}

// ended is how a query ended.
type ended struct {
	done runnerscripts.QueryCompleted
	err  error
}

// begin runs a query while the case does something else.
func (r *rig) begin(c agent.Conversation, text string) <-chan ended {
	result := make(chan ended, 1)
	go func() {
		done, err := c.Prompt(r.Context(), "query", text)
		result <- ended{done, err}
	}()
	return result
}

// await waits for the end of a query.
func (r *rig) await(query <-chan ended) ended {
	r.Helper()
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	select {
	case e := <-query:
		return e
	case <-timer.C:
		r.Fatalf("the query has not ended; there were:\n%s", agenttest.Describe(r.out.All()))
		return ended{}
	}
}

// prompt runs a query that must not fail.
func (r *rig) prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	r.Helper()
	e := r.await(r.begin(c, text))
	if e.err != nil {
		r.Fatalf("prompt %q: %v", text, e.err)
	}
	return e.done
}

// asked waits for the first permission request.
func (r *rig) asked() runnerscripts.PermissionRequest {
	r.Helper()
	e := r.out.Wait(r.Context(), r, agenttest.OfType(runnerscripts.TypePermissionRequest))
	return agenttest.Payload[runnerscripts.PermissionRequest](r, e)
}

// resolved are the ends of permission requests.
func (r *rig) resolved() []runnerscripts.PermissionResolved {
	r.Helper()
	return agenttest.Payloads[runnerscripts.PermissionResolved](r, r.out.All(), runnerscripts.TypePermissionResolved)
}

// initialized are the starts that the driver has told.
func (r *rig) initialized() []runnerscripts.SessionInitialized {
	r.Helper()
	return agenttest.Payloads[runnerscripts.SessionInitialized](r, r.out.All(), runnerscripts.TypeSessionInitialized)
}

func (r *rig) exists(file string) bool {
	_, err := os.Stat(filepath.Join(r.session.Paths.Workspace, file))
	return err == nil
}

// sameAsTranscript fails unless the conversation so far is the one in the transcript.
func (r *rig) sameAsTranscript() {
	r.Helper()
	stored := agenttest.NewRecorder()
	if _, err := r.driver.Transcript(r.Context(), runnerscripts.TranscriptRequest{Session: r.session, Events: true}, stored); err != nil {
		r.Fatalf("read the transcript: %v", err)
	}
	agenttest.SameConversation(r, r.out.All(), stored.All())
}
