package environment

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestSecretsOfTheSandboxAreRedacted(t *testing.T) {
	box := sandbox(t)
	box.Env = map[string]string{"TOKEN": "hunter2hunter2"}
	env := create(t, Config{Sandbox: box, Scripts: Scripts{SetupSession: shell(`echo "token $TOKEN" >&2; exit 1`)}})
	_, err := env.PrepareSession(t.Context(), Setup{})
	var script *ScriptError
	if !errors.As(err, &script) || script.Stderr != "token [redacted]\n" {
		t.Errorf("error %v", err)
	}
}

func TestSecretsAreRedactedInEventsAboutTheProgram(t *testing.T) {
	env := create(t, Config{Agent: Agent{Env: map[string]string{"KEY": `sk"0123456789`}}, Scripts: Scripts{
		SetupSession: fine(), ReadTranscript: fine(), ExecuteQuery: shell(started + `
			echo '{"type":"log","payload":{"level":"warn","message":"with sk\"0123456789"}}'
			echo '{"type":"query_failed","payload":{"code":"agent_error","message":"no money: sk\"0123456789","http_status":402}}'`),
	}})
	events, err := collect(t.Context(), env, Query{Prompt: "x"})
	var failed *QueryError
	if !errors.As(err, &failed) || failed.Failure.Message != "no money: [redacted]" || failed.Failure.HTTPStatus != 402 {
		t.Errorf("error %v", err)
	}
	if len(events) != 3 {
		t.Fatalf("events %s", types(events))
	}
	if l, err := runnerscripts.Payload[runnerscripts.Log](events[1]); err != nil || l.Message != "with [redacted]" || l.Level != "warn" {
		t.Errorf("the log says %+v, %v", l, err)
	}
	if f, err := runnerscripts.Payload[runnerscripts.QueryFailed](events[2]); err != nil || f != failed.Failure {
		t.Errorf("the event says %+v, %v", f, err)
	}
}

func TestTheModeMayChangeWhileChangesAreLookedFor(t *testing.T) {
	env := withQuery(t, patient)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for range 10 {
			if _, err := env.Changes(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := 0; ; i++ {
		mode := strconv.Itoa(i)
		if err := env.SetMode(t.Context(), mode); err != nil {
			t.Error(err)
		}
		if got := env.queries.Request().Agent.PermissionMode; got != mode {
			t.Errorf("the mode is %q", got)
		}
		select {
		case <-looked:
			return
		default:
		}
	}
}

func TestAChildThatGoesOnPrintingDoesNotKeepAQueryAlive(t *testing.T) {
	env := withQuery(t, started+`(while echo '{"type":"raw","payload":{}}'; do sleep 0.02; done) & exit 4`)
	_, err := collect(t.Context(), env, Query{Prompt: "x"})
	var script *ScriptError
	if !errors.As(err, &script) || script.Status.Code != 4 {
		t.Errorf("error %v, want a ScriptError with code 4", err)
	}
}

func TestAQueryThatIsCancelledBeforehandLeavesTheAgentAlone(t *testing.T) {
	env := withQuery(t, patient)
	first, err := collect(t.Context(), env, Query{Prompt: "one"})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for range 20 {
		if events, err := collect(ctx, env, Query{Prompt: "two"}); !errors.Is(err, cause) || len(events) != 0 {
			t.Fatalf("%v and events %q, want the cause and none", err, types(events))
		}
	}
	second, err := collect(t.Context(), env, Query{Prompt: "three"})
	if err != nil {
		t.Fatal(err)
	}
	if said(t, first) != said(t, second) {
		t.Error("the agent was started again")
	}
}

func TestAChangeWhileTheAgentIsStartedIsNotLost(t *testing.T) {
	p := newBare(t)
	env := newOver(t, p, Config{Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(patient)}})
	if _, err := env.PrepareSession(t.Context(), Setup{}); err != nil {
		t.Fatal(err)
	}
	p.exec = func(ctx context.Context) error {
		return errors.Join(env.SetModel(ctx, "m2"), env.SetMode(ctx, "plan"))
	}
	if _, err := collect(t.Context(), env, Query{Prompt: "one"}); err != nil {
		t.Fatal(err)
	}
	// The script prints its input between queries.
	var told strings.Builder
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "two"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeRaw {
			told.Write(ev.Payload)
		}
	}
	if got := told.String(); !strings.Contains(got, `"value":"m2"`) || !strings.Contains(got, `"value":"plan"`) {
		t.Errorf("the agent got %q", got)
	}
}

// silent is a sandbox that does not answer.
type silent struct {
	primitives.EnvironmentPrimitive
}

func (s silent) Poll(ctx context.Context) (primitives.State, error) {
	<-ctx.Done()
	return primitives.State{}, context.Cause(ctx)
}

func TestHealthyEndsWithItsContext(t *testing.T) {
	env := newOver(t, silent{newBare(t)}, Config{})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := env.Healthy(ctx); !errors.Is(err, cause) || errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("error %v, want the context's cause alone", err)
	}
}

func TestASandboxThatDoesNotAnswerIsUnavailable(t *testing.T) {
	env := newOver(t, silent{newBare(t)}, Config{Scripts: Scripts{ReadTranscript: shell("exit 3")}})
	env.scripts.Probe = 1
	_, err := env.ReadTranscript(t.Context())
	var script *ScriptError
	if !errors.As(err, &script) || script.Status.Code != 3 || !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("error %v, want code 3 and primitives.ErrUnavailable", err)
	}
}
