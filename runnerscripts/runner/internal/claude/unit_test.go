package claude

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The names are the program's own. The long ones were computed with JavaScript's arithmetic, which
// the program uses.
func TestSlugIsTheProgramsNameOfAFolder(t *testing.T) {
	tests := map[string]string{
		"/a b.c/Ünïcödé/🙂x":                 "-a-b-c--n-c-d----x",
		"/" + strings.Repeat("x", 199):      "-" + strings.Repeat("x", 199),
		"/" + strings.Repeat("x", 200):      "-" + strings.Repeat("x", 199) + "-d0i18x",
		"/" + strings.Repeat("long-Ä/", 40): "-" + strings.Repeat("long---", 28) + "lon-wswcx",
	}
	for path, want := range tests {
		if got := slug(path); got != want {
			t.Errorf("slug(%q)\n got %q\nwant %q", path, got, want)
		}
	}
}

// The program drops space around a path, which must not hide from the guard that the file is elsewhere.
func TestSpaceAroundAPathIsNoPartOfIt(t *testing.T) {
	tr := newTranslator(agenttest.NewRecorder(), primitives.Paths{Workspace: "/ws", Home: "/home"})
	for file, want := range map[string]string{
		" /etc/x": "/etc/x", "\u00a0/etc/x\n": "/etc/x", "\ufeff/etc/x": "/etc/x", " ~/x": "/home/x", "src/a b": "/ws/src/a b", " a": "/ws/a",
	} {
		raw, err := json.Marshal(map[string]string{"file_path": file})
		if err != nil {
			t.Fatal(err)
		}
		if call := tr.toolCall("1", "Write", raw); len(call.Locations) != 1 || call.Locations[0].Path != want {
			t.Errorf("%q is at %v, want %s", file, call.Locations, want)
		}
	}
}

func TestOutcomeOfAResult(t *testing.T) {
	tests := []struct {
		name      string
		result    resultLine
		cancelled bool
		stop      runnerscripts.StopReason
		code      runnerscripts.FailureCode
	}{
		{"a normal end", resultLine{Subtype: "success", StopReason: "end_turn"}, false, runnerscripts.StopEndTurn, ""},
		{"the model's limit", resultLine{Subtype: "success", StopReason: "max_tokens"}, false, runnerscripts.StopMaxTokens, ""},
		{"a refusal", resultLine{Subtype: "success", StopReason: "refusal"}, false, runnerscripts.StopRefusal, ""},
		{"too many turns", resultLine{Subtype: "error_max_turns", IsError: true}, false, runnerscripts.StopMaxRequests, ""},
		{"an interrupt", resultLine{Subtype: "error_during_execution", IsError: true}, true, runnerscripts.StopCancelled, ""},
		{"an interrupt that came too late", resultLine{Subtype: "success", TerminalReason: "completed"}, true, runnerscripts.StopEndTurn, ""},
		{"an abort", resultLine{Subtype: "error_during_execution", TerminalReason: "aborted_tools"}, false, runnerscripts.StopCancelled, ""},
		{"an API error called success", resultLine{Subtype: "success", IsError: true, APIErrorStatus: 400}, false, "", runnerscripts.FailAPI},
		{"an API that cannot be reached", resultLine{Subtype: "success", IsError: true}, false, "", runnerscripts.FailAPI},
		{"any other error", resultLine{Subtype: "error_during_execution", IsError: true, Errors: []string{"why"}}, false, "", runnerscripts.FailAgent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stop, err := outcome(tt.result, tt.cancelled)
			if stop != tt.stop {
				t.Errorf("stop reason %q, want %q", stop, tt.stop)
			}
			if tt.code == "" && err != nil || tt.code != "" && !agenttest.HasCode(err, tt.code) {
				t.Errorf("error %v, want the code %q", err, tt.code)
			}
			if f, ok := errors.AsType[*runnerscripts.ScriptFailure](err); ok && f.HTTPStatus != tt.result.APIErrorStatus {
				t.Errorf("status %d", f.HTTPStatus)
			}
		})
	}
}

func TestPermissionOptionsComeFromTheSuggestions(t *testing.T) {
	suggest := func(list string) question {
		var r canUseTool
		if err := json.Unmarshal([]byte(`{"tool_name":"Bash","input":{"command":"x"},"permission_suggestions":`+list+`}`), &r); err != nil {
			t.Fatal(err)
		}
		return newQuestion("main", r)
	}
	rules := suggest(`[{"type":"addRules","rules":[{"toolName":"Bash","ruleContent":"x *"}],"behavior":"allow","destination":"localSettings"},
		{"type":"setMode","mode":"acceptEdits","destination":"session"}]`)
	if len(rules.options) != 3 || rules.options[1].Name != "Allow for this session: Bash(x *)" {
		t.Errorf("options: %+v", rules.options)
	}
	if len(rules.onAlways) != 1 || string(rules.onAlways[0]["destination"]) != `"session"` {
		t.Errorf("always: %v", rules.onAlways)
	}
	mode := suggest(`[{"type":"setMode","mode":"acceptEdits","destination":"session"}]`)
	if len(mode.options) != 3 || mode.options[1].Name != "Allow for this session: mode acceptEdits" {
		t.Errorf("options: %+v", mode.options)
	}
	none := suggest(`[]`)
	if len(none.options) != 2 {
		t.Errorf("options: %+v", none.options)
	}
}

func TestDecisionMustFitTheOptions(t *testing.T) {
	q := newQuestion("main", canUseTool{})
	for name, d := range map[string]runnerscripts.PermissionDecision{
		"nothing chosen":             {},
		"an unknown option":          {OptionID: "nope"},
		"a kind that is not offered": {Kind: runnerscripts.AllowAlways},
		"an option of another kind":  {OptionID: "allow", Kind: runnerscripts.RejectOnce},
		"an input for a rejection":   {Kind: runnerscripts.RejectOnce, UpdatedInput: json.RawMessage(`{}`)},
		"an input that is no object": {Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`"x"`)},
	} {
		if _, err := q.choose(d); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTodosAreAPlan(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(t, out)
	c.handle([]byte(`{"type":"assistant","message":{"id":"m","role":"assistant","model":"x","content":[{"type":"tool_use","id":"t","name":"TodoWrite",` +
		`"input":{"todos":[{"content":"Think","status":"completed","activeForm":"Thinking"},{"content":"Act","status":"in_progress","activeForm":"Acting"}]}}]}}`))
	plans := agenttest.Payloads[runnerscripts.Plan](t, out.All(), runnerscripts.TypePlan)
	want := []runnerscripts.PlanEntry{{Content: "Think", Status: "completed"}, {Content: "Act", Status: "in_progress"}}
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[0] != want[0] || plans[0].Entries[1] != want[1] {
		t.Errorf("plans: %+v", plans)
	}
}

func TestRetriedMessageTakesBackTheFirstTry(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(t, out)
	for _, ev := range []string{
		`{"type":"message_start","message":{"id":"one"}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"half a"}}`,
		`{"type":"message_start","message":{"id":"two"}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a whole answer"}}`,
	} {
		c.handle([]byte(`{"type":"stream_event","parent_tool_use_id":null,"event":` + ev + `}`))
	}
	c.handle([]byte(`{"type":"assistant","message":{"id":"two","content":[{"type":"text","text":"a whole answer"}]}}`))
	if got := agenttest.Said(t, out.All()); got != "a whole answer\n" {
		t.Errorf("the agent said %q", got)
	}
}

func TestTextThatLostPiecesIsMadeWhole(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(t, out)
	for _, ev := range []string{
		`{"type":"message_start","message":{"id":"one"}}`,
		`{"type":"content_block_start","index":3,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"a who"}}`,
	} {
		c.handle([]byte(`{"type":"stream_event","event":` + ev + `}`))
	}
	c.handle([]byte(`{"type":"assistant","message":{"id":"one","content":[{"type":"text","text":"a whole answer"}]}}`))
	blocks := agenttest.Fold(t, out.All()).Blocks
	if len(blocks) != 1 || blocks[0].ID != "one-3" || blocks[0].Text != "a whole answer" {
		t.Errorf("blocks: %s", agenttest.Show(t, blocks))
	}
}
