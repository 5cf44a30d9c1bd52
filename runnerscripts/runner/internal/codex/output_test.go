package codex

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// A schema of strict mode reaches the API with each turn until it is changed. Other schemas stay outside: the API would
// refuse the request.
func TestASchemaBindsTheOutput(t *testing.T) {
	t.Parallel()
	const strict = `{"type":"object","required":["line"],"additionalProperties":false,"properties":{"line":{"type":"integer"}}}`
	f := newFixture(t)
	c := f.start()
	for _, turn := range []struct{ schema, format string }{
		{strict, `{"type":"json_schema","strict":true,"schema":` + strict + `,"name":"codex_output_schema"}`},
		{strict, `{"type":"json_schema","strict":true,"schema":` + strict + `,"name":"codex_output_schema"}`},
		{`{"type":"object"}`, ""},
		{strict, `{"type":"json_schema","strict":true,"schema":` + strict + `,"name":"codex_output_schema"}`},
		{"", ""},
	} {
		if bound := c.(agent.OutputBinder).BindOutput(json.RawMessage(turn.schema)); bound != (turn.format != "") {
			t.Errorf("%q binds: %v", turn.schema, bound)
		}
		if done := f.Prompt(c, "say-text `{\"line\":7}`"); done.StopReason != runnerscripts.StopEndTurn || !strings.HasSuffix(f.Said(), "{\"line\":7}\n") {
			t.Errorf("%q: %q, %q", turn.schema, done.StopReason, f.Said())
		}
		var sent struct {
			Text struct {
				Format json.RawMessage `json:"format"`
			} `json:"text"`
		}
		if err := json.Unmarshal(f.LastRequest().Body, &sent); err != nil || string(sent.Text.Format) != turn.format {
			t.Errorf("%q: the API got %s, %v", turn.schema, sent.Text.Format, err)
		}
	}
}

func TestTheSchemasOfStrictMode(t *testing.T) {
	object := func(properties string, required ...string) string {
		names, err := json.Marshal(append([]string{}, required...))
		if err != nil {
			t.Fatal(err)
		}
		return `{"type":"object","additionalProperties":false,"properties":{` + properties + `},"required":` + string(names) + `}`
	}
	deep := `{"type":"string"}`
	for range strictDepth + 1 {
		deep = object(`"a":`+deep, "a")
	}
	wide := make([]string, strictProperties+1)
	for i := range wide {
		wide[i] = strings.Repeat("x", i+1)
	}
	for want, texts := range map[bool][]string{
		true: {
			object(``),
			object(`"a":{"type":"string"}`, "a"),
			object(`"a":{"type":["string","null"]}`, "a"),
			object(`"a":`+object(`"b":{"type":"integer","minimum":1}`, "b"), "a"),
			object(`"a":{"type":"array","minItems":1,"items":`+object(``)+`}`, "a"),
			object(`"a":{"anyOf":[{"type":"string"},{"type":"string","enum":["x","y"]},`+object(``)+`]}`, "a"),
			object(`"a":{"type":"string","format":"date"}`, "a"),
			strings.Replace(object(`"a":{"$ref":"#/$defs/b"}`, "a"), `{`, `{"$defs":{"b":`+object(``)+`},`, 1),
		},
		false: {
			``,
			`true`,
			`{}`,
			`{"type":"array","items":{"type":"string"}}`,
			`{"type":"object"}`,
			object(`"a":{"type":"string"}`),
			strings.Replace(object(``), `"additionalProperties":false,`, ``, 1),
			strings.Replace(object(``), `:false`, `:true`, 1),
			object(`"a":{"type":"object"}`, "a"),
			object(`"a":{"type":["object","null"]}`, "a"),
			object(`"a":{"properties":{}}`, "a"),
			object(`"a":{"type":"array","items":{"type":"object"}}`, "a"),
			object(`"a":{"anyOf":[{"type":"string"},{"type":"object"}]}`, "a"),
			object(`"a":{"oneOf":[{"type":"string"}]}`, "a"),
			object(`"a":{"type":"string","minLength":1}`, "a"),
			object(`"a":{"type":"string","format":"uri"}`, "a"),
			object(`"a":{"type":"string","format":5}`, "a"),
			object(`"a":true`, "a"),
			object(`"a":{}`, "a"),
			object(`"a":{"description":"x"}`, "a"),
			object(`"a":{"enum":["x"]}`, "a"),
			object(`"a":{"anyOf":[{"type":"string"},{"enum":["x",1]}]}`, "a"),
			object(`"a":{"type":"array"}`, "a"),
			object(`"a":{"type":["array","null"]}`, "a"),
			strings.Replace(object(`"a":{"$ref":"#/$defs/b","description":"x"}`, "a"), `{`, `{"$defs":{"b":`+object(``)+`},`, 1),
			strings.Replace(object(`"a":{"$ref":"#/$defs/b"}`, "a"), `{`, `{"$defs":{"b":{"type":"object"}},`, 1),
			deep,
			object(`"`+strings.Join(wide, `":{"type":"null"},"`)+`":{"type":"null"}`, wide...),
		},
	} {
		for _, text := range texts {
			if got := strictSchema(json.RawMessage(text)); got != want {
				t.Errorf("%.300s: %v", text, got)
			}
		}
	}
}
