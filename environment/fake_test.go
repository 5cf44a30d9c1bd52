package environment

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// bare is a sandbox with only the required methods. If lost is set, it is unavailable.
type bare struct {
	primitives.EnvironmentPrimitive
	lost bool
	exec func(context.Context) error // before each exec; may be nil
}

func (b *bare) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	if b.lost {
		return nil, &primitives.Error{Op: "exec", Err: errors.New("connection reset")}
	}
	if b.exec != nil {
		if err := b.exec(ctx); err != nil {
			return nil, err
		}
	}
	return b.EnvironmentPrimitive.Exec(ctx, cmd)
}

func (b *bare) Poll(ctx context.Context) (primitives.State, error) {
	if b.lost {
		return primitives.State{Status: primitives.StatusLost}, nil
	}
	return b.EnvironmentPrimitive.Poll(ctx)
}

func newBare(t *testing.T) *bare {
	t.Helper()
	p, err := local.New(t.Context(), local.Config{Root: rootOf(sandbox(t))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return &bare{EnvironmentPrimitive: p}
}

func newOver(t *testing.T, p primitives.EnvironmentPrimitive, cfg Config) *Environment {
	t.Helper()
	env, err := New(t.Context(), p, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

func TestALostSandboxIsUnavailable(t *testing.T) {
	p := newBare(t)
	env := newOver(t, p, Config{Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(patient), ReadTranscript: fine()}})
	if _, err := collect(t.Context(), env, Query{Prompt: "one"}); err != nil {
		t.Fatal(err)
	}
	p.lost = true
	if _, err := collect(t.Context(), env, Query{Prompt: "die"}); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("a query: %v, want primitives.ErrUnavailable", err)
	}
	if _, err := env.ReadTranscript(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("the transcript: %v, want primitives.ErrUnavailable", err)
	}
	if err := env.Healthy(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("health: %v, want primitives.ErrUnavailable", err)
	}
	p.lost = false // for the cleanup
}

func TestASandboxThatCannotPackSaysSoWhenItIsAsked(t *testing.T) {
	p := newBare(t)
	env := newOver(t, p, Config{Workspace: []Source{{Files: []File{{Path: "a", Content: "1"}}}}})
	if _, err := env.Changes(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("changes: %v, want errors.ErrUnsupported", err)
	}
	if err := env.Patch(t.Context(), failingWriter{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("patch: %v, want errors.ErrUnsupported", err)
	}
	var source *SourceError
	_, err := New(t.Context(), p, Config{Workspace: []Source{{Folder: &Folder{Path: t.TempDir()}}}})
	if !errors.As(err, &source) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a folder: %v, want a SourceError and errors.ErrUnsupported", err)
	}
}

func TestAContextBoundsTheStartOfAScript(t *testing.T) {
	p := newBare(t)
	env := newOver(t, p, Config{Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(patient)}})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	p.exec = func(starting context.Context) error {
		cancel(cause)
		<-starting.Done()
		return starting.Err()
	}
	if _, err := env.PrepareSession(ctx, Setup{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestAPromptMayBeLarge(t *testing.T) {
	env := withQuery(t, `
		turn() { echo '{"type":"raw","payload":'${#1}'}'; echo '{"type":"query_completed"}'; }
		while read -r line; do turn "$line"; done`)
	prompt := strings.Repeat("x", 300_000)
	for range 2 {
		events, err := collect(t.Context(), env, Query{Prompt: prompt})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := runnerscripts.Payload[int](events[0]); err != nil || n < len(prompt) {
			t.Errorf("the script read %d bytes, %v", n, err)
		}
	}
}
