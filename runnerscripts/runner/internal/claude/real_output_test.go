package claude

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// outputTool is the tool that the program offers for its output.
const outputTool = "StructuredOutput"

// lineSchema is a schema for it.
var lineSchema = json.RawMessage(`{"type":"object","required":["line"],"properties":{"line":{"type":"integer"}}}`)

// A schema binds the program, and holds for the prompts until it is changed. Each change costs a restart, except before
// the first prompt, and the conversation goes on.
func TestASchemaBindsTheOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	bind := c.(agent.OutputBinder).BindOutput
	if !bind(lineSchema) {
		t.Fatal("the program takes no schema")
	}
	done := f.Prompt(c, "call-tool `StructuredOutput {\"line\":7}`")
	if string(done.ResultData) != `{"line":7}` {
		t.Errorf("the output is %s", done.ResultData)
	}
	// The program says once more what it wants; that it does not get it is for the host to see.
	if done := f.Prompt(c, "plain-text"); done.ResultData != nil || done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("without output: %q, %s", done.StopReason, done.ResultData)
	}
	if bind(nil) {
		t.Error("no schema binds")
	}
	if done := f.Prompt(c, "remember"); done.ResultData != nil {
		t.Errorf("without a schema the output is %s", done.ResultData)
	}
	if last := f.LastRequest(); slices.Contains(last.Tools, outputTool) || !strings.Contains(f.Said(), `{"line":7}`) {
		t.Errorf("the tools are %q; the agent said %q", last.Tools, f.Said())
	}
	f.nothingAsked()
	f.SameAsTranscript()
}

func TestAProgramThatFindsNoOutputFailsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Env["MAX_STRUCTURED_OUTPUT_RETRIES"] = "1"
	c := f.Start()
	c.(agent.OutputBinder).BindOutput(lineSchema)
	_, err := c.Prompt(t.Context(), "query", "call-tool `StructuredOutput {\"line\":\"seven\"}`")
	if failed, ok := errors.AsType[*runnerscripts.ScriptFailure](err); !ok || failed.Code != runnerscripts.FailOutput || !strings.Contains(failed.Message, "simplify the output schema") {
		t.Errorf("the error is %v", err)
	}
}

func TestTheProgramTakesSchemasOfObjects(t *testing.T) {
	for text, want := range map[string]bool{
		``: false, `true`: false, `{}`: false, `{"type":"array"}`: false, `{"type":["object","null"]}`: false, `{"type":"object"}`: true,
		`{"type":"object","$schema":"http://json-schema.org/draft-07/schema#"}`:      true,
		`{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema"}`: false,
	} {
		if got := toolSchema(json.RawMessage(text)) != nil; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
