package environment

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// bugSchema is the schema of the outputs in this file.
var bugSchema = json.RawMessage(`{"type": "object", "required": ["file", "line"], "properties": {"file": {"type": "string"}, "line": {"type": "integer"}}}`)

// text returns a turn that says texts, each in a block of its own.
func text(said ...string) (t runnerscripts.ScenarioTurn) {
	for _, s := range said {
		t.Steps = append(t.Steps, runnerscripts.ScenarioStep{Text: s})
	}
	return t
}

// once checks that a query has begun once and ended once, and returns its last event.
func once(t *testing.T, events []runnerscripts.Event) runnerscripts.Event {
	t.Helper()
	seen := " " + types(events) + " "
	if strings.Count(seen, " query_started ") != 1 || strings.Count(seen, " query_completed ")+strings.Count(seen, " query_failed ") != 1 || strings.Contains(seen, " query_output ") {
		t.Errorf("events %s", types(events))
	}
	return events[len(events)-1]
}

func TestAnAnswerBecomesTheOutputOfItsSchema(t *testing.T) {
	t.Parallel()
	const good = `{"file":"a.go","line":7}`
	for name, answer := range map[string]runnerscripts.ScenarioTurn{
		"JSON alone":                         text(good),
		"after white space":                  text("\n " + good + "\n"),
		"a block of code":                    text("Here it is:\n\n```json\n" + good + "\n```\nIt is on line 7."),
		"the last of two messages":           text("I have looked at all files.", good),
		"a tool comes before it":             turn(runnerscripts.ScenarioStep{Text: `{"file":"b.go","line":1}`}, runnerscripts.ScenarioStep{Run: []string{"true"}}, runnerscripts.ScenarioStep{Text: good}),
		"a block of code in the last of two": text("```\nnot this\n```", "```json\n"+good+"\n```"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := create(t, Config{Agent: scenario(t, answer, text("{{history}}"))})
			done, err := env.RunQuery(t.Context(), Query{Prompt: "find the bug", OutputSchema: bugSchema})
			if err != nil || string(done.ResultData) != good {
				t.Fatalf("%s, %v", done.ResultData, err)
			}
			// The schema is for one query; and the agent was asked for it in words, once.
			next, err := env.RunQuery(t.Context(), Query{Prompt: "what was asked?"})
			if err != nil || next.ResultData != nil || strings.Count(next.Text, `"required":["file","line"]`) != 1 || strings.Count(next.Text, "find the bug") != 1 {
				t.Errorf("the next query: %q, %s, %v", next.Text, next.ResultData, err)
			}
		})
	}
}

func TestAnAgentIsAskedAgainForOutput(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: scenario(
		t, text("I do not know."), text(`{"file":"a.go","line":"seven"}`), text(`{"file":"a.go","line":7}`), text("{{history}}"),
	)})
	events, err := collect(t.Context(), env, Query{Prompt: "find the bug", OutputSchema: bugSchema})
	if err != nil {
		t.Fatal(err)
	}
	done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](once(t, events))
	if err != nil || string(done.ResultData) != `{"file":"a.go","line":7}` || done.Usage.OutputTokens != 6 {
		t.Errorf("%+v, %s, %v", done, done.ResultData, err)
	}
	for i, ev := range events[1:] {
		if ev.QueryID != events[i].QueryID || ev.Index != 0 && ev.Index <= events[i].Index {
			t.Errorf("%s has index %d of query %s", ev.Type, ev.Index, ev.QueryID)
		}
	}
	asked := say(t, env, "what was asked?")
	for _, part := range []string{"- $: it is no JSON", `- $.line: got string, want integer`} {
		if strings.Count(asked, part) != 1 {
			t.Errorf("%q is not in %s", part, asked)
		}
	}
}

func TestAQueryFailsWhoseOutputNeverMatches(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: scenario(t, text("no"), text("```json\n{}\n```"), text(`{"file":"a.go"}`), text("after"))})
	events, err := collect(t.Context(), env, Query{Prompt: "find the bug", OutputSchema: bugSchema})
	failed, ok := errors.AsType[*QueryError](err)
	if !ok || failed.Failure.Code != runnerscripts.FailOutput || !strings.Contains(err.Error(), `$: "line" is required`) {
		t.Fatalf("the error is %v", err)
	}
	got, err := runnerscripts.Payload[runnerscripts.QueryFailed](once(t, events))
	if err != nil || got.Detail == nil || len(got.Detail.Violations) != 1 || string(got.Detail.ResultData) != `{"file":"a.go"}` || got.Usage.OutputTokens != 5 {
		t.Errorf("%+v, %+v, %v", got, got.Detail, err)
	}
	if p := env.queries.Agent(); !strings.Contains(say(t, env, "again"), "after") || p != env.queries.Agent() {
		t.Error("the agent does not go on with the next query")
	}
}

// A query that did not end its turn by itself is not asked again.
func TestAnInterruptEndsAQueryThatIsAskedAgain(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: scenario(t, text("no"), turn(runnerscripts.ScenarioStep{Text: "second"}, runnerscripts.ScenarioStep{DelayMS: 3_600_000}), text("after"))})
	var events []runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "find the bug", OutputSchema: bugSchema}) {
		if err != nil {
			t.Fatal(err)
		}
		if events = append(events, ev); ev.Text() == "second" {
			if err := env.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](once(t, events))
	if err != nil || done.StopReason != runnerscripts.StopCancelled || done.ResultData != nil || done.Usage.OutputTokens < 2 {
		t.Errorf("%+v, %s, %v", done, done.ResultData, err)
	}
	if p := env.queries.Agent(); !strings.Contains(say(t, env, "again"), "after") || p != env.queries.Agent() {
		t.Error("the agent does not go on with the next query")
	}
}

func TestABadOutputSchemaIsRefusedBeforeTheAgentIsStarted(t *testing.T) {
	t.Parallel()
	profile := func(p executor.Profile) Agent {
		p.Command = executor.Command{"false"}
		config, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return Agent{Name: "command", Config: config}
	}
	for name, c := range map[string]struct {
		agent        Agent
		schema, says string
		want         error
	}{
		"no JSON":                   {schema: `{"type": `, want: fs.ErrInvalid, says: "it is no JSON: unexpected end"},
		"two values":                {schema: `{} {}`, want: fs.ErrInvalid, says: "it is no JSON: "},
		"no schema":                 {schema: `5`, want: fs.ErrInvalid, says: "$: got number, want boolean or object"},
		"null":                      {schema: `null`, want: fs.ErrInvalid, says: "$: got null, want boolean or object"},
		"a bad pattern":             {schema: `{"pattern": "("}`, want: fs.ErrInvalid, says: "$.pattern: '(' is not valid regex"},
		"a reference to a URL":      {schema: `{"$ref": "https://example.com/schema.json"}`, want: fs.ErrInvalid, says: "it is no JSON schema that stands alone"},
		"too large":                 {schema: `{"title": "` + strings.Repeat("x", MaxOutputSchema) + `"}`, want: primitives.ErrLimit, says: "give one of at most 64 KiB"},
		"an executor's own schema":  {agent: profile(executor.Profile{OutputSchema: bugSchema}), schema: `{}`, want: errors.ErrUnsupported, says: "the executor's profile has an output_schema"},
		"an executor of parameters": {agent: profile(executor.Profile{ParametersSchema: bugSchema}), schema: `{}`, want: errors.ErrUnsupported, says: "the prompts of this executor are parameters"},
		"a procedural executor":     {agent: profile(executor.Profile{Type: executor.Procedural}), schema: `{}`, want: errors.ErrUnsupported, says: "the prompts of this executor are parameters"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := c.agent
			if agent.Name == "" {
				agent = scenario(t, text("hello"))
			}
			env := create(t, Config{Agent: agent})
			events, err := collect(t.Context(), env, Query{Prompt: "hello", OutputSchema: json.RawMessage(c.schema)})
			if len(events) != 0 || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, %v", types(events), err)
			}
		})
	}
}

// A script of one's own that knows nothing of schemas is checked all the same, once.
func TestTheOutputOfAScriptOfOnesOwnIsChecked(t *testing.T) {
	t.Parallel()
	env := withQuery(t, `read -r request
case $request in *'"output_schema":{"type":"object"'*) ;; *) exit 9;; esac
echo '{"type":"query_started","payload":{"prompt":"?"}}'
case $request in *good*) said='{\"file\":\"a.go\",\"line\":7}';; *) said=no;; esac
echo '{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"'"$said"'"}}}'
echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'
echo '{"type":"result","ok":true}'`)
	events, err := collect(t.Context(), env, Query{Prompt: "good", OutputSchema: bugSchema})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](once(t, events)); err != nil || string(done.ResultData) != `{"file":"a.go","line":7}` {
		t.Errorf("%s, %v", done.ResultData, err)
	}
	_, err = collect(t.Context(), env, Query{Prompt: "bad", OutputSchema: bugSchema})
	if failed, ok := errors.AsType[*QueryError](err); !ok || failed.Failure.Code != runnerscripts.FailOutput {
		t.Errorf("bad: %v", err)
	}
}
