package codex

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestQueryThatTheModelEndsEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	for prompt, want := range map[string]struct {
		stop   runnerscripts.StopReason
		advice string
	}{
		"cut-short":  {runnerscripts.StopMaxTokens, ""},
		"filtered":   {runnerscripts.StopRefusal, ""},
		"broken":     {"", "was cut"},
		"http-400":   {"", "refused the request"},
		"plain-text": {runnerscripts.StopEndTurn, ""},
	} {
		done, err := c.Prompt(t.Context(), "query", prompt)
		failure, _ := errors.AsType[*runnerscripts.ScriptFailure](err)
		switch {
		case done.StopReason != want.stop, (failure == nil) != (want.advice == ""):
			t.Errorf("%s ended with %q, %v", prompt, done.StopReason, err)
		case failure != nil && (failure.Code != runnerscripts.FailAPI || !strings.Contains(failure.Message, want.advice)):
			t.Errorf("%s: %+v", prompt, failure)
		}
	}
}
