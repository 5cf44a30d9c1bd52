package environment

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// wrongFirst makes the scripted model answer first with JSON that does not match lineSchema, and then, since the violation
// names the property that is not allowed, with {"line":7}.
const wrongFirst = "say-text `" + `{"line":7,"say-text \u0060{\u0022line\u0022:7}\u0060":1}` + "`"

var lineSchema = json.RawMessage(`{"type":"object","required":["line"],"additionalProperties":false,"properties":{"line":{"type":"integer"}}}`)

// The gateway counts, records and repeats the calls of all turns, and its budget ends whichever is too much.
func TestAQueryThatIsAskedAgainIsOneForTheGateway(t *testing.T) {
	t.Parallel()
	api, codex := keyedModel(t), keyedAgents()[1]
	q := Query{Prompt: wrongFirst, OutputSchema: lineSchema}
	file := filepath.Join(t.TempDir(), "session.replay")
	cfg := codex.local(t, api)
	cfg.Record = file
	env := create(t, cfg)
	events, err := collect(t.Context(), env, q)
	if err != nil {
		t.Fatal(err)
	}
	recorded := strings.Join(same(events, env.Primitive().Paths()), "\n")
	if result, _ := lastOf(t, events); result != `{"line":7}` || env.Used().Requests != 2 || !strings.Contains(recorded, "Your answer does not match") {
		t.Errorf("the result is %q after %d requests and\n%s", result, env.Used().Requests, recorded)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	cfg = codex.local(t, api)
	cfg.Credentials, cfg.Replay = nil, file
	env = create(t, cfg)
	if events, err = collect(t.Context(), env, q); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(same(events, env.Primitive().Paths()), "\n"); got != recorded {
		t.Errorf("the replay has\n%s\nand the session had\n%s", got, recorded)
	}
	cfg = codex.local(t, api)
	cfg.Budget.Query.Requests = 1
	env = create(t, cfg)
	endsAtLimitOf(t, env, q, "requests")
	if used := env.Used(); used.Requests != 1 {
		t.Errorf("it has used %+v", used)
	}
}
