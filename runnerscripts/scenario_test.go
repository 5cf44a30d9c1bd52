package runnerscripts_test

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestScenarioThatCannotBePlayedIsRefusedWithItsPlace(t *testing.T) {
	for raw, says := range map[string]string{
		`{}`: `"turns"`,
		`{"turns":[{"steps":[{"text":"a"},{}]}]}`:                  "turn 1, step 2",
		`{"turns":[{"steps":[{"delay_ms":-1}]}]}`:                  "negative",
		`{"turns":[{"steps":[{"crash":300}]}]}`:                    "255",
		`{"turns":[{"steps":[{"write":{"content":"x"}}]}]}`:        "path",
		`{"turns":[{"steps":[{"fail":{"message":"x"}}]}]}`:         "code",
		`{"turns":[{"steps":[{"ask":{"text":"x"}}]}]}`:             "run",
		`{"turns":[{"steps":[{"ask":{"run":["a"],"text":"x"}}]}]}`: "exactly one",
		`{"turns":[{"steps":[{"sing":"x"}]}]}`:                     "sing",
		`{"turns":[{"steps":[]}],"file":"x"}`:                      `"file"`,
		`{"turns":[{"steps":[]}]} {}`:                              "more than one",
	} {
		if _, err := runnerscripts.ParseScenario([]byte(raw)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", raw, err, says)
		}
	}
}
