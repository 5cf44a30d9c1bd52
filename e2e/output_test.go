package e2e_test

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
)

// matchesSchema checks that an agent ends with output of a schema, after it was asked again where it answers in words, and
// that the next query is free.
func matchesSchema(t *testing.T, env *environment.Environment, agent string) {
	t.Helper()
	const want = `{"line":7}`
	schema := json.RawMessage(`{"type":"object","required":["line"],"additionalProperties":false,"properties":{"line":{"type":"integer"}}}`)
	// The violation that the agent reads names the property that is not allowed, which is the next prompt of the scripted model.
	prompt := "say-text `" + `{"line":7,"say-text \u0060{\u0022line\u0022:7}\u0060":1}` + "`"
	if agent == "claude" { // which has a tool for it
		prompt = "call-tool `StructuredOutput " + want + "`"
	}
	done, err := env.RunQuery(t.Context(), environment.Query{Prompt: prompt, OutputSchema: schema})
	if err != nil || string(done.ResultData) != want {
		t.Errorf("the output is %s, %v; the agent said %q", done.ResultData, err, done.Text)
	}
	if done, err = env.Run(t.Context(), "please plain-text"); err != nil || done.ResultData != nil {
		t.Errorf("the next query: %s, %v", done.ResultData, err)
	}
}
