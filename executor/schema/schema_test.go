package schema

import (
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/executor"
)

const person = `{
	"type": "object", "required": ["name"], "additionalProperties": false,
	"properties": {
		"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
		"friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
		"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}
	},
	"$defs": {"friend": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}
}`

func TestEachViolationSaysWhereItIs(t *testing.T) {
	s, err := Parse([]byte(person))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]executor.Violation{
		`{"name": "x", "age": 3, "friends": [{"name": "y"}], "kind": "a"}`: nil,
		`{"name": 1, "age": -1}`: {
			{Path: "$.age", Message: `minimum: -1/1 is less than 0.000000`, SchemaPath: "properties/age/minimum"},
			{Path: "$.name", Message: `type: 1 has type "integer", want "string"`, SchemaPath: "properties/name/type"},
		},
		`{"nam": "x"}`: {
			{Path: "$", Message: `"name" is required`, SchemaPath: "required"},
			{Path: "$.nam", Message: `it is not allowed here; there are: age, friends, kind, name`, SchemaPath: "additionalProperties"},
		},
		`{"name": "x", "friends": [{"name": "y"}, {"name": 5}, {}]}`: {
			{Path: "$.friends[1].name", Message: `type: 5 has type "integer", want "string"`, SchemaPath: "$defs/friend/properties/name/type"},
			{Path: "$.friends[2]", Message: `"name" is required`, SchemaPath: "$defs/friend/required"},
		},
		`5`: {{Path: "$", Message: `type: 5 has type "integer", want "object"`, SchemaPath: "type"}},
		``:  {{Path: "$", Message: `it is no JSON: unexpected end of JSON input`}},
	} {
		err := s.Check("result", []byte(text))
		var got []executor.Violation
		if wrong, ok := errors.AsType[*executor.SchemaError](err); ok {
			got = wrong.Violations
		}
		if !slices.Equal(got, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", text, err)
		}
	}
	err = s.Check("result", []byte(`{"name": "x", "kind": "c"}`))
	if err == nil || !strings.Contains(err.Error(), "$.kind: anyOf") {
		t.Errorf("anyOf: %v", err)
	}
	many := `{"name": "x", "friends": [` + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + `]}`
	if wrong, ok := errors.AsType[*executor.SchemaError](s.Check("result", []byte(many))); !ok || len(wrong.Violations) != maxViolations {
		t.Errorf("many: %v", wrong)
	}
}

func TestASchemaStandsAlone(t *testing.T) {
	for _, text := range []string{``, `null`, `5`, `{"type": 5}`, `{"$ref": "https://example.com/x"}`, `{"$ref": "#/$defs/none"}`, `{"pattern": "("}`} {
		if _, err := Parse([]byte(text)); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTheSchemaOfTheInvocationFitsIt(t *testing.T) {
	text, err := Invocation()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	i := executor.Invocation{
		SchemaVersion: executor.SchemaVersion, Mode: executor.Resume, SessionID: "s", Parameters: executor.Parameters("hi"), ProjectDir: "/w",
		AgentBlueprint: &executor.Blueprint{Name: "x", MCPServers: map[string]executor.MCPServer{"m": {Type: "stdio", Command: "c", Args: []string{"a"}}}},
		ExecutorConfig: json.RawMessage(`{"a": 1}`),
	}
	data, err := json.Marshal(i)
	if err = errors.Join(err, s.Check("invocation", data)); err != nil {
		t.Error(err)
	}
	if err := s.Check("invocation", []byte(strings.Replace(string(data), "{", `{"of_a_later_version":1,`, 1))); err != nil {
		t.Errorf("with a field that is not known: %v", err)
	}
	i.SchemaVersion, i.Mode = "2.1", "begin"
	data, err = json.Marshal(i)
	if wrong, ok := errors.AsType[*executor.SchemaError](errors.Join(err, s.Check("invocation", data))); !ok || len(wrong.Violations) != 2 {
		t.Errorf("a wrong version and mode: %v", wrong)
	}
}
