package claude

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/llmapi"
	"github.com/agentenv-dev/agentenv/internal/testagents"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a session of the real Claude Code with a scripted model.
type fixture struct {
	t       *testing.T
	api     *llmapi.Server
	session runnerscripts.Session
	out     *recorder
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
	f := &fixture{t: t, api: api, session: newSession(t), out: newRecorder()}
	f.session.Agent.Command = []string{testagents.Claude(t)}
	f.session.Agent.Env = map[string]string{
		"ANTHROPIC_BASE_URL":      api.URL,
		"ANTHROPIC_API_KEY":       "test-key",
		"CLAUDE_CODE_MAX_RETRIES": "1",
	}
	return f
}

// newSession is a session in folders of its own.
func newSession(t *testing.T) runnerscripts.Session {
	t.Helper()
	paths := primitives.PathsIn(t.TempDir())
	for _, dir := range paths.All() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return runnerscripts.Session{
		Protocol: runnerscripts.Protocol, SessionID: newUUID(), Paths: paths,
		Agent: runnerscripts.Agent{Name: programName},
	}
}

// start starts the conversation; it is closed at the end of the test.
func (f *fixture) start() agent.Conversation {
	f.t.Helper()
	c, err := Driver{}.Start(f.t.Context(), runnerscripts.QueryRequest{Session: f.session}, f.out)
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

// workspaceFile is the path of a file in the workspace.
func (f *fixture) workspaceFile(name string) string {
	return filepath.Join(f.session.Paths.Workspace, name)
}

func (f *fixture) exists(name string) bool {
	_, err := os.Stat(f.workspaceFile(name))
	return err == nil
}

// transcript reads the history back, with its events.
func (f *fixture) transcript() (runnerscripts.Transcript, *recorder) {
	f.t.Helper()
	out := newRecorder()
	tr, err := Driver{}.Transcript(f.t.Context(), runnerscripts.TranscriptRequest{Session: f.session, Events: true}, out)
	if err != nil {
		f.t.Fatalf("read the transcript: %v", err)
	}
	return tr, out
}

// lastRequest is the last request of the agent to the model.
func (f *fixture) lastRequest() llmapi.Request {
	f.t.Helper()
	all := f.api.Requests()
	if len(all) == 0 {
		f.t.Fatal("the model was asked nothing")
	}
	return all[len(all)-1]
}

// recorder is a Sink that keeps the events.
type recorder struct {
	mu     sync.Mutex
	events []runnerscripts.Event
	more   chan struct{} // closed and replaced at each event
}

func newRecorder() *recorder { return &recorder{more: make(chan struct{})} }

func (r *recorder) Emit(conv string, typ runnerscripts.EventType, payload any) {
	r.EmitAt(time.Now(), conv, typ, payload)
}

func (r *recorder) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	raw, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, runnerscripts.Event{Type: typ, ConversationID: conv, Payload: raw, Time: at})
	close(r.more)
	r.more = make(chan struct{})
}

func (r *recorder) all() []runnerscripts.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// wait returns the first event, from the n-th on, that fits.
func (r *recorder) wait(ctx context.Context, t *testing.T, fits func(runnerscripts.Event) bool) runnerscripts.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for n := 0; ; {
		r.mu.Lock()
		events, more := r.events, r.more
		r.mu.Unlock()
		for ; n < len(events); n++ {
			if fits(events[n]) {
				return events[n]
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("the expected event did not come; there were:\n%s", describe(events))
		}
	}
}

func ofType(typ runnerscripts.EventType) func(runnerscripts.Event) bool {
	return func(e runnerscripts.Event) bool { return e.Type == typ }
}

// payloads are those of all events of a type.
func payloads[T any](t *testing.T, events []runnerscripts.Event, typ runnerscripts.EventType) []T {
	t.Helper()
	var list []T
	for _, e := range events {
		if e.Type != typ {
			continue
		}
		p, err := runnerscripts.Payload[T](e)
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		list = append(list, p)
	}
	return list
}

// said is the text of the agent.
func said(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	var b strings.Builder
	for _, blk := range fold(t, events).Blocks {
		if blk.Kind == session.BlockAgent {
			b.WriteString(blk.Text + "\n")
		}
	}
	return b.String()
}

func describe(events []runnerscripts.Event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Type == runnerscripts.TypeCommands {
			continue
		}
		b.WriteString(e.ConversationID + " " + string(e.Type) + " " + string(e.Payload) + "\n")
	}
	return b.String()
}
