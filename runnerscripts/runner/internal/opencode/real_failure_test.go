package opencode

import (
	"errors"
	"net/http"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func endsEarly(f *fixture, c *conversation) {
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
		done, err := c.Prompt(f.Context(), "query", tt.prompt)
		failure, _ := errors.AsType[*runnerscripts.ScriptFailure](err)
		if done.StopReason != tt.stop || (failure == nil) != (tt.code == "") || failure != nil && failure.Code != tt.code {
			f.Errorf("%s ended with %q, %v", tt.prompt, done.StopReason, err)
		}
		if c.server != first {
			f.Errorf("%s: the server was started again", tt.prompt)
		}
	}
}

// failures also tests how many retries are reported. The program does not report the status of a
// request that it retries.
func failures(f *fixture, c *conversation) {
	f.failsWith(c, "http-401", http.StatusUnauthorized, 0)
	f.failsWith(c, "http-529", 0, 2)
}

func (f *fixture) failsWith(c *conversation, text string, status, retries int) {
	f.Helper()
	f = f.in(f.TB)
	_, err := c.Prompt(f.Context(), "q", text)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status || !strings.Contains(failure.Message, "scripted failure") {
		f.Fatalf("error %#v", err)
	}
	if status == http.StatusUnauthorized && !strings.Contains(failure.Message, "give the agent a key") {
		f.Errorf("error %v", err)
	}
	if text := agenttest.Said(f, f.Events()); text != "" {
		f.Errorf("the agent said %q", text)
	}
	if logs := agenttest.Payloads[runnerscripts.Log](f, f.Events(), runnerscripts.TypeLog); len(logs) != retries {
		f.Errorf("logs: %+v", logs)
	}
	f.Prompt(c, "plain-text")
}
