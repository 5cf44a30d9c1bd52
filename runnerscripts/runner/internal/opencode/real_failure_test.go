package opencode

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestQueryThatTheModelEndsEarly uses one server for all cases: none of them ends the server.
func TestQueryThatTheModelEndsEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	first := c.server
	for _, tt := range []struct {
		prompt string
		stop   runnerscripts.StopReason
		code   runnerscripts.FailureCode
	}{
		{"cut-short", runnerscripts.StopMaxTokens, ""},
		{"filtered", runnerscripts.StopRefusal, ""},
		{"broken", "", runnerscripts.FailQuery},
		{"http-400", "", runnerscripts.FailAPI},
		{"plain-text", runnerscripts.StopEndTurn, ""},
	} {
		t.Run(tt.prompt, func(t *testing.T) {
			done, err := c.Prompt(t.Context(), "query", tt.prompt)
			failure, _ := errors.AsType[*runnerscripts.ScriptFailure](err)
			if done.StopReason != tt.stop || (failure == nil) != (tt.code == "") || failure != nil && failure.Code != tt.code {
				t.Errorf("ended with %q, %v", done.StopReason, err)
			}
			if c.server != first {
				t.Error("the server was started again")
			}
		})
	}
	f.SameAsTranscript()
}
