package session

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestWaitSaysWhatTheAgentReportedLastWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	failing := runnerscripts.ScenarioStep{Print: json.RawMessage(
		`{"type":"log","payload":{"level":"warn","code":"api","http_status":529,"message":"the API answered 529"}}`)}
	s := start(t, scripted(t, steps(failing, forever())))
	turn := prompt(t, s, "x")
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for ev, err := range turn.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := ev.Value().(*runnerscripts.Log); ok && l.Code == runnerscripts.FailAPI {
			break
		}
	}
	cancel(enough)
	_, err := turn.Wait(ctx)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !errors.Is(err, enough) || !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != 529 {
		t.Errorf("error %v, failure %+v", err, failure)
	}
	if err := turn.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason %q", done.StopReason)
	}
}

func TestWaitDoesNotReportTheFailureOfAnEarlierTurn(t *testing.T) {
	t.Parallel()
	failing := runnerscripts.ScenarioStep{Print: json.RawMessage(
		`{"type":"log","payload":{"level":"warn","code":"api","http_status":529,"message":"the API answered 529"}}`)}
	s := start(t, scripted(t, steps(failing), steps(forever())))
	complete(t, prompt(t, s, "first"))
	turn := prompt(t, s, "second")
	awaitFrom(t, s, turn.seq, runnerscripts.TypeUserMessage)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := turn.Wait(ctx); err != enough { //nolint:errorlint // nothing is added
		t.Errorf("error %v, want only the context's cause", err)
	}
	if err := turn.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
}
