package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testnet"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// Fixture is a session of a driver in a test, and what the driver emits. A test may consist of
// steps that share the session, see [Fixture.In]. A method that returns no error fails the test.
type Fixture struct {
	testing.TB // of this step
	Driver     agent.Driver
	API        *llmapi.Server // the scripted model; nil for none
	Session    runnerscripts.Session
	Profile    runnerscripts.Profile
	Raw        bool
	Out        *agenttest.Recorder

	whole testing.TB // of all steps
	mark  int        // the number of events before this step
}

// New returns a fixture whose session has empty folders.
func New(t testing.TB, d agent.Driver, agentName string) *Fixture {
	t.Helper()
	return &Fixture{TB: t, whole: t, Driver: d, Session: agenttest.NewSession(t, agent.NewUUID(), agentName), Out: agenttest.NewRecorder()}
}

// StartModel starts the scripted model. It is closed at the end of all steps. No other program gets its
// port before that, not even after a step has closed the model.
func (f *Fixture) StartModel() {
	f.Helper()
	api, err := llmapi.Start(f.whole.Context(), llmapi.Config{Addr: testnet.FreeAddress(f.whole)})
	if err != nil {
		f.Fatal(err)
	}
	f.API = api
	f.whole.Cleanup(func() {
		if err := api.Close(); err != nil {
			f.whole.Errorf("close the model: %v", err)
		}
	})
}

// In returns the fixture for a step with a test of its own. Session and Profile are copies.
func (f *Fixture) In(t testing.TB) *Fixture {
	g := *f
	g.TB, g.mark = t, len(f.Out.All())
	return &g
}

// SetUp calls Setup of the driver.
func (f *Fixture) SetUp() {
	f.Helper()
	if _, err := f.Driver.Setup(f.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: f.Profile}); err != nil {
		f.Fatalf("set up: %v", err)
	}
}

// TryStart starts a conversation. It is closed at the end of all steps.
func (f *Fixture) TryStart() (agent.Conversation, error) {
	return f.TryStartWith(f.whole.Context(), f.Out)
}

// StartWith is like Start, for a conversation that ends with ctx and emits to out.
func (f *Fixture) StartWith(ctx context.Context, out agent.Sink) agent.Conversation {
	f.Helper()
	c, err := f.TryStartWith(ctx, out)
	if err != nil {
		f.Fatalf("start: %v", err)
	}
	return c
}

// TryStartWith is like TryStart, for a conversation that ends with ctx and emits to out.
func (f *Fixture) TryStartWith(ctx context.Context, out agent.Sink) (agent.Conversation, error) {
	c, err := f.Driver.Start(ctx, runnerscripts.QueryRequest{Session: f.Session, Profile: f.Profile, Raw: f.Raw}, out)
	if err == nil {
		f.whole.Cleanup(func() {
			if err := c.Close(); err != nil {
				f.whole.Errorf("close: %v", err)
			}
		})
	}
	return c, err
}

// Start starts a conversation. It is closed at the end of all steps.
func (f *Fixture) Start() agent.Conversation {
	f.Helper()
	return f.StartWith(f.whole.Context(), f.Out)
}

// Prompt runs a query that must not fail.
func (f *Fixture) Prompt(c agent.Conversation, text string) runnerscripts.QueryCompleted {
	f.Helper()
	done, err := c.Prompt(f.Context(), "query", text)
	if err != nil {
		f.Fatalf("prompt %q: %v", text, err)
	}
	return done
}

// PromptAsync runs a query in the background. The returned function waits for its end.
func (f *Fixture) PromptAsync(c agent.Conversation, text string) func() (runnerscripts.QueryCompleted, error) {
	type outcome struct {
		done runnerscripts.QueryCompleted
		err  error
	}
	result := make(chan outcome, 1)
	ctx := f.Context()
	go func() {
		done, err := c.Prompt(ctx, "query", text)
		result <- outcome{done, err}
	}()
	return func() (runnerscripts.QueryCompleted, error) {
		o := <-result
		return o.done, o.err
	}
}

// Events returns the events of this step.
func (f *Fixture) Events() []runnerscripts.Event { return f.Out.All()[f.mark:] }

// Wait waits for an event of this step until ctx is done, but at most as long as
// [agenttest.Recorder.Wait].
func (f *Fixture) Wait(ctx context.Context, fits func(runnerscripts.Event) bool) runnerscripts.Event {
	f.Helper()
	n := 0
	return f.Out.Wait(ctx, f, func(e runnerscripts.Event) bool {
		n++
		return n > f.mark && fits(e)
	})
}

// Requests returns the permission requests of this step.
func (f *Fixture) Requests() []runnerscripts.PermissionRequest {
	f.Helper()
	return agenttest.Payloads[runnerscripts.PermissionRequest](f, f.Events(), runnerscripts.TypePermissionRequest)
}

// Asked waits for the first permission request of this step.
func (f *Fixture) Asked() runnerscripts.PermissionRequest {
	f.Helper()
	return f.AskedAgain(0)
}

// AskedAgain waits for the permission request of this step that comes after n others.
func (f *Fixture) AskedAgain(n int) runnerscripts.PermissionRequest {
	f.Helper()
	f.Wait(f.Context(), func(runnerscripts.Event) bool { return len(f.Requests()) > n })
	return f.Requests()[n]
}

// Answer answers the first permission request of this step.
func (f *Fixture) Answer(c agent.Conversation, d runnerscripts.PermissionDecision) {
	f.Helper()
	if err := c.Respond(f.Context(), f.Asked().ID, d); err != nil {
		f.Fatal(err)
	}
}

// Said returns what the agent said in this step.
func (f *Fixture) Said() string {
	f.Helper()
	return agenttest.Said(f, f.Events())
}

// UsageAfter returns the usage of the requests to the model after the first n.
func (f *Fixture) UsageAfter(n int) (sum runnerscripts.Usage) {
	for _, r := range f.API.Requests()[n:] {
		sum = sum.Add(runnerscripts.Usage{
			InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens,
			CacheReadTokens: r.Usage.CacheReadTokens, CacheWriteTokens: r.Usage.CacheWriteTokens,
		})
	}
	return sum
}

// LastRequest returns the last request to the model.
func (f *Fixture) LastRequest() llmapi.Request {
	f.Helper()
	all := f.API.Requests()
	if len(all) == 0 {
		f.Fatal("the model was asked nothing")
	}
	return all[len(all)-1]
}

// Transcript reads the transcript and the events in it.
func (f *Fixture) Transcript() (runnerscripts.Transcript, *agenttest.Recorder) {
	f.Helper()
	out := agenttest.NewRecorder()
	tr, err := f.Driver.Transcript(f.Context(), runnerscripts.TranscriptRequest{Session: f.Session, Events: true}, out)
	if err != nil {
		f.Fatalf("read the transcript: %v", err)
	}
	return tr, out
}

// SameAsTranscript fails the test unless the transcript has the conversation that was emitted.
func (f *Fixture) SameAsTranscript() runnerscripts.Transcript {
	f.Helper()
	tr, stored := f.Transcript()
	agenttest.SameConversation(f, f.Out.All(), stored.All())
	return tr
}

// WorkspaceFile returns the path of a file in the workspace.
func (f *Fixture) WorkspaceFile(name string) string {
	return filepath.Join(f.Session.Paths.Workspace, name)
}

// Exists reports whether a file is in the workspace.
func (f *Fixture) Exists(name string) bool {
	_, err := os.Stat(f.WorkspaceFile(name))
	return err == nil
}

// NoFileHas fails the test if a file of the session contains text, or if there are fewer files than
// least.
func (f *Fixture) NoFileHas(text string, least int) {
	f.Helper()
	files := 0
	err := filepath.WalkDir(f.Session.Paths.Session, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && name != f.Session.Paths.Session {
			return nil // the running program has removed it
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files++
		if bytes.Contains(data, []byte(text)) {
			f.Errorf("%s has the text", name)
		}
		return err
	})
	if err != nil || files < least {
		f.Errorf("%d files were read, %v", files, err)
	}
}
