package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAdviceFitsTheStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		0: "can be reached", 400: "refused the request", 401: "as KEY", 403: "as KEY", 404: "agent.model", 408: "has failed",
		422: "refused the request", 429: "over its limits", 500: "has failed", 502: "has failed", 503: "over its limits", 529: "over its limits",
	} {
		f, ok := errors.AsType[*runnerscripts.ScriptFailure](APIFailure(status, "the words", "as KEY", ""))
		fact, advice, _ := strings.Cut(f.Message, "; ")
		if !ok || f.Code != runnerscripts.FailAPI || f.HTTPStatus != status || !strings.Contains(advice, want) || !strings.HasSuffix(fact, "the words") {
			t.Errorf("%d: %+v", status, f)
		}
	}
}
