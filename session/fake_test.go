package session

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// fakeSandbox replaces a sandbox in tests that need a fake clock, which real processes ignore,
// or failures that a real sandbox cannot produce.
type fakeSandbox struct {
	mu      sync.Mutex
	closed  bool
	removed bool // by Terminate
	healthy error
	probes  int
	options []string                                           // the options that callers have set
	ending  error                                              // what Close returns
	history string                                             // the transcript: every prompt so far
	recall  func(history string, stopped bool) (string, error) // the transcript, if it is not the history
	stopped bool                                               // StopAgent was called
	prepare func(ctx context.Context) error
	// query plays a query; nil completes it at once.
	query func(ctx context.Context, q environment.Query, yield func(runnerscripts.Event, error) bool)
}

func newFake() *fakeSandbox { return &fakeSandbox{} }

func (f *fakeSandbox) setHealthy(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.healthy = err
}

func (f *fakeSandbox) ID() string        { return "fake" }
func (f *fakeSandbox) SessionID() string { return "fake-session" }

func (f *fakeSandbox) Isolation() primitives.Isolation { return primitives.IsolationNone }

func (f *fakeSandbox) WorkspacePath() string { return "/workspace" }

func (f *fakeSandbox) Durable() bool { return false }

func (f *fakeSandbox) Fork(context.Context, int) ([]sandbox, error) {
	return nil, errors.ErrUnsupported
}

func (f *fakeSandbox) PrepareSession(ctx context.Context, _ environment.Setup) (runnerscripts.SetupData, error) {
	if f.prepare == nil {
		return runnerscripts.SetupData{}, nil
	}
	return runnerscripts.SetupData{}, f.prepare(ctx)
}

func (f *fakeSandbox) ExecuteQuery(ctx context.Context, q environment.Query) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		f.mu.Lock()
		f.history += q.Prompt + "\n"
		f.mu.Unlock()
		started := event(runnerscripts.TypeQueryStarted, q.ID, runnerscripts.QueryStarted{Prompt: q.Prompt})
		if !yield(started, nil) {
			return
		}
		if f.query != nil {
			f.query(ctx, q, yield)
			return
		}
		yield(completed(q, runnerscripts.StopEndTurn), nil)
	}
}

func completed(q environment.Query, why runnerscripts.StopReason) runnerscripts.Event {
	return event(runnerscripts.TypeQueryCompleted, q.ID, runnerscripts.QueryCompleted{StopReason: why})
}

// hang plays a query that ends only when it is interrupted.
func hang(ctx context.Context, q environment.Query, yield func(runnerscripts.Event, error) bool) {
	<-ctx.Done()
	if yield(completed(q, runnerscripts.StopCancelled), nil) {
		yield(runnerscripts.Event{}, context.Cause(ctx))
	}
}

func (f *fakeSandbox) Respond(context.Context, string, runnerscripts.PermissionDecision) error {
	return nil
}

func (f *fakeSandbox) SetMode(_ context.Context, mode string) error {
	f.options = append(f.options, mode)
	return nil
}

func (f *fakeSandbox) SetModel(_ context.Context, model string) error {
	f.options = append(f.options, model)
	return nil
}

func (f *fakeSandbox) ReadTranscript(context.Context) (runnerscripts.Transcript, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recall == nil {
		return runnerscripts.Transcript{Main: f.history}, nil
	}
	main, err := f.recall(f.history, f.stopped)
	return runnerscripts.Transcript{Main: main}, err
}

func (f *fakeSandbox) StopAgent(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	return nil
}

func (f *fakeSandbox) WorkspaceFiles(context.Context, environment.FilesOptions) ([]environment.WorkspaceFile, error) {
	return nil, nil
}

func (f *fakeSandbox) WatchWorkspace(context.Context, environment.FilesOptions) (iter.Seq2[runnerscripts.Event, error], error) {
	return nil, errors.ErrUnsupported
}

func (f *fakeSandbox) Healthy(ctx context.Context) error {
	f.mu.Lock()
	err := f.healthy
	f.probes++
	f.mu.Unlock()
	if errors.Is(err, errSilence) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// errSilence makes the fake not answer probes at all.
var errSilence = errors.New("silence")

func (f *fakeSandbox) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return f.ending
}

func (f *fakeSandbox) Terminate(context.Context) error {
	err := f.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = true
	return err
}

func (f *fakeSandbox) Interrupt(context.Context) error { return nil }

func (f *fakeSandbox) Files() primitives.Files { return noFiles{} }

// noFiles is a workspace without files.
type noFiles struct{ primitives.Files }

func (noFiles) List(context.Context, string, primitives.ListOptions) ([]primitives.FileInfo, error) {
	return nil, nil
}

func (f *fakeSandbox) States() *workspace.Tracker { return nil }

func (f *fakeSandbox) Pack(context.Context, primitives.PackOptions) (io.ReadCloser, error) {
	var b bytes.Buffer
	err := tar.NewWriter(&b).Close()
	return io.NopCloser(&b), err
}

// startFake opens a session whose sandboxes are the given ones, in this order.
func startFake(t *testing.T, cfg Config, fakes ...*fakeSandbox) *AgentSession {
	t.Helper()
	s, err := open(t.Context(), fakeConfig(cfg), only(fakes...))
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	return s
}

func fakeConfig(cfg Config) Config {
	cfg.Environment.Agent.Name = "script"
	if cfg.Environment.OnPermission == nil {
		cfg.Environment.OnPermission = environment.AnswerLater
	}
	return cfg
}

// only returns a createFunc that returns these sandboxes, one after the other.
func only(fakes ...*fakeSandbox) func(context.Context, environment.Config) (sandbox, error) {
	return func(context.Context, environment.Config) (sandbox, error) {
		if len(fakes) == 0 {
			return nil, errors.New("the test has no more sandboxes")
		}
		f := fakes[0]
		fakes = fakes[1:]
		return f, nil
	}
}
