package gemini

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

func TestRetriesInTheLogAreReported(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct{ cause, attempt string }{
		"Attempt 1 failed. Retrying with backoff... Error: exception TypeError: fetch failed sending request": {"could not be reached: check its address", "1"},
		"Attempt 2 failed. Retrying with backoff... Error: incomplete json segment":                           {"failed: Error: incomplete json segment", "2"},
		"Attempt 3 failed with status 503. Retrying with backoff... ApiError: overloaded":                     {"failed with status 503", "3"},
		"Attempt 4 failed with 5xx error. Retrying with backoff... Error: 502":                                {"failed with 5xx error", "4"},
		"Attempt 5 failed: You exceeded your quota. Wait. Retrying after 5012ms...":                           {"failed: You exceeded your quota. Wait", "5"},
		"Attempt 6 failed: gone. Max attempts reached":                                                        {},
		"Ripgrep is not available. Falling back to GrepTool.":                                                 {},
	} {
		if cause, attempt := retried([]byte(line)); cause != want.cause || attempt != want.attempt {
			t.Errorf("%s: %q, attempt %q", line, cause, attempt)
		}
	}
}

func TestAnAPIThatCannotBeReachedHasNoStatus(t *testing.T) {
	t.Parallel()
	for said, status := range map[string]int{"exception TypeError: fetch failed sending request": 0, "overloaded": 500} {
		f, ok := errors.AsType[*runnerscripts.ScriptFailure](failure(&jsonrpc.Error{Code: 500, Message: said}))
		if !ok || f.Code != runnerscripts.FailAPI || f.HTTPStatus != status {
			t.Errorf("%s: %+v", said, f)
		}
	}
}
