package agent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestALineIsReportedWithWhatIsWrongWithIt(t *testing.T) {
	for line, shown := range map[string]string{
		"loading":                 "loading",
		"a\xffb":                  "a\uFFFDb",
		strings.Repeat("x", 2000): strings.Repeat("x", 1024),
	} {
		out := agenttest.NewRecorder()
		agent.EmitUnreadable(out, "Acme", []byte(line), errors.New("it is no JSON"))
		logs := agenttest.Payloads[rs.Log](t, out.All(), rs.TypeLog)
		if want := `{"line":"` + shown + `"}`; len(logs) != 1 || string(logs[0].Data) != want ||
			logs[0].Message != "Acme printed a line that is not understood: it is no JSON" {
			t.Errorf("%s: %+v", line, logs)
		}
	}
}
