package environment

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// onRecord is a log writer that calls do for each record with the text.
type onRecord struct {
	text string
	do   func()
}

func (o onRecord) Write(b []byte) (int, error) {
	if strings.Contains(string(b), o.text) {
		o.do()
	}
	return len(b), nil
}

// A deadline that passes while the agent keeps retrying a failing API does not itself give the
// reason.
func TestRunSaysWhatTheAgentReportedLastWhenItsContextEnds(t *testing.T) {
	failing := `echo '{"type":"log","payload":{"level":"warn","code":"api","http_status":529,"message":"the API answered 529"}}'` + "\n"
	for name, c := range map[string]struct {
		script string
		want   int // status; zero for no report
	}{
		"a failure that lasts":         {failing, 529},
		"a failure that was overcome":  {failing + `echo '{"type":"agent_thought_chunk","payload":{"blockId":"1","content":{"type":"text","text":"x"}}}'` + "\n", 0},
		"a record that is no failure":  {`echo '{"type":"log","payload":{"level":"warn","message":"the API answered 529"}}'` + "\n", 0},
		"a failure, and then a record": {failing + `echo '{"type":"log","payload":{"level":"info","message":"x"}}'` + "\n", 529},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			env := create(t, Config{
				Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(started + c.script +
					`echo '{"type":"log","payload":{"level":"warn","message":"enough"}}'; cat >/dev/null`)},
				Logger: hclog.New(&hclog.LoggerOptions{Output: onRecord{"enough", func() { cancel(errEnough) }}}),
			})
			env.queries.Grace, env.queries.Margin = 0, 0
			_, err := env.Run(ctx, "x")
			failure, told := errors.AsType[*runnerscripts.ScriptFailure](err)
			switch {
			case !errors.Is(err, errEnough):
				t.Errorf("error %v, want the context's cause", err)
			case told != (c.want != 0):
				t.Errorf("error %v, want it to have a ScriptFailure: %v", err, !told)
			case told && (failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != c.want || !strings.Contains(err.Error(), "the API answered 529")):
				t.Errorf("error %v, failure %+v", err, failure)
			}
		})
	}
}
