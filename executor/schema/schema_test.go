package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/executor"
)

const person = `{
	"type": "object", "required": ["name"], "additionalProperties": false,
	"properties": {
		"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
		"none": {"additionalProperties": false},
		"friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
		"kind": {"anyOf": [{"const": "a", "type": "string"}, {"const": "b", "type": "string"}, {"type": "object", "properties": {"first": {"type": "string"}}}]}
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
			{Path: "$.age", Message: `minimum: got -1, want 0`, SchemaPath: "properties/age/minimum"},
			{Path: "$.name", Message: `got number, want string`, SchemaPath: "properties/name/type"},
		},
		`{"nam": "x"}`: {
			{Path: "$", Message: `"name" is required`, SchemaPath: "required"},
			{Path: "$.nam", Message: `it is not allowed here; there are: age, friends, kind, name, none`, SchemaPath: "additionalProperties"},
		},
		`{"name": "x", "friends": [{"name": "y"}, {"name": 5}, {}]}`: {
			{Path: "$.friends[1].name", Message: `got number, want string`, SchemaPath: "$defs/friend/properties/name/type"},
			{Path: "$.friends[2]", Message: `"name" is required`, SchemaPath: "$defs/friend/required"},
		},
		`{"name": "x", "kind": "c"}`: {
			{Path: "$.kind", Message: `'anyOf' failed: value must be 'a', or value must be 'b'`, SchemaPath: "properties/kind/anyOf"},
		},
		// Of alternatives only those for the type of the value count.
		`{"name": "x", "kind": {"first": 5}}`: {{Path: "$.kind.first", Message: `got number, want string`, SchemaPath: "properties/kind/anyOf/2/properties/first/type"}},
		`{"name": "x", "none": {"a": 1}}`:     {{Path: "$.none.a", Message: `it is not allowed here`, SchemaPath: "properties/none/additionalProperties"}},
		`5`:                                   {{Path: "$", Message: `got number, want object`, SchemaPath: "type"}},
		``:                                    {{Path: "$", Message: `it is no JSON: unexpected end of JSON input`}},
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
	err = s.Check("parameters", []byte(`{"name": "x", "age": -1, "friends": [1]}`))
	if want := "invalid parameters: $.age: minimum: got -1, want 0; $.friends[0]: got number, want object"; err == nil || err.Error() != want {
		t.Errorf("as a text: %v", err)
	}
	many := `{"name": "x", "friends": [` + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + `]}`
	if wrong, ok := errors.AsType[*executor.SchemaError](s.Check("result", []byte(many))); !ok || len(wrong.Violations) != maxViolations {
		t.Errorf("many: %v", wrong)
	}
}

func TestAViolationHasABoundedText(t *testing.T) {
	names := `"a": {}`
	for i := range 1000 {
		names += fmt.Sprintf(`, "né%d": {}`, i)
	}
	nested := strings.Repeat(`{"a": `, 12) + `5` + strings.Repeat(`}`, 12)
	for name, c := range map[string]struct{ schema, value string }{
		"many properties":     {`{"additionalProperties": false, "properties": {` + names + `}}`, `{"x": 1}`},
		"a long name":         {`{"additionalProperties": false}`, `{"` + strings.Repeat("é", 5000) + `": 1}`},
		"nested parts":        {`{"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#"}}}}}`, nested},
		"parts of many parts": {`{"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]}`, `[1` + strings.Repeat(",1", 5000) + `]`},
	} {
		s, err := Parse([]byte(c.schema))
		if err != nil {
			t.Fatal(err)
		}
		wrong, ok := errors.AsType[*executor.SchemaError](s.Check("result", []byte(c.value)))
		if !ok {
			t.Errorf("%s: it matches", name)
			continue
		}
		for _, v := range wrong.Violations {
			if len(v.Path) > maxText || len(v.Message) > maxText || !utf8.ValidString(v.Path+v.Message) || len(v.Path+v.Message) < maxText/2 {
				t.Errorf("%s: %d bytes of path, %d of message: %s: %s", name, len(v.Path), len(v.Message), v.Path, v.Message)
			}
		}
	}
}

func TestASchemaIsCheckedAgainstItsDraft(t *testing.T) {
	for _, c := range [][2]string{
		{`{"type": "objct"}`, "$.type: value must be one of 'array'"},
		{`{"properties": {"a": {"type": "string", "minLength": -1}}}`, "$.properties.a.minLength: minimum: got -1, want 0"},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"required": "name"}]}`, "$.items[0].required: got string, want array"},
		{`{"$defs": {"unused": {"enum": 5}}}`, "$.$defs.unused.enum: got number, want array"},
		{`{"type": 5}`, "$.type: "},
		{`5`, "$: got number, want boolean or object"},
		{`null`, "$: got null, want boolean or object"},
		{``, "it is no JSON: unexpected end"},
		{`{"type": "object"`, "it is no JSON: unexpected end"},
		{`{"pattern": "("}`, "$.pattern: '(' is not valid regex"},
		{`{"$ref": "#/$defs/none"}`, `"#/$defs/none" not found`},
		{`{"$ref": "https://example.com/x"}`, "put what it refers to into its $defs"},
		{`{"$ref": "other.json"}`, `"other.json": nothing is loaded`},
		{`{"$ref": "file:///etc/hostname"}`, "nothing is loaded"},
		{`{"$schema": "https://example.com/my-draft"}`, "nothing is loaded"},
		{`{"$schema": "http://json-schema.org/draft-03/schema#"}`, "nothing is loaded"},
		{`{"minimum": 1, "exclusiveMinimum": true}`, "$.exclusiveMinimum: got boolean, want number"},
	} {
		text, want := c[0], c[1]
		if _, err := Parse([]byte(text)); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), base) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		`true`, `{}`, `{"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}`,
		`{"$ref": "https://json-schema.org/draft/2020-12/schema"}`, `{"$id": "https://example.com/mine", "$ref": "#/$defs/a", "$defs": {"a": {}}}`,
	} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPartsThatSayTheSameAreOneViolation(t *testing.T) {
	s, err := Parse([]byte(`{"allOf": [{"type": "string"}, {"type": "string"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if wrong, ok := errors.AsType[*executor.SchemaError](s.Check("result", []byte(`5`))); !ok || len(wrong.Violations) != 1 {
		t.Errorf("violations: %v", wrong)
	}
}

func TestNumbersAreNotRounded(t *testing.T) {
	s, err := Parse([]byte(`{"enum": [9007199254740993]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check("result", []byte(`9007199254740993`)); err != nil {
		t.Error(err)
	}
	if err := s.Check("result", []byte(`9007199254740992`)); err == nil {
		t.Error("another number matches")
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

// The library panics at an exponent over a million, and computes smaller ones in full.
func TestHugeNumbersAreRefused(t *testing.T) {
	s, err := Parse([]byte(`{"type": "object", "properties": {"n": {"minimum": 0}, "list": {"items": {"type": "integer"}, "uniqueItems": true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []string{"1e1000001", "-1E+401", "1e-401", "1e99999999999999999999", strings.Repeat("9", 1001)} {
		for _, data := range []string{`{"n": ` + number + `}`, `{"list": [` + number + `]}`, number} {
			err := s.Check("result", []byte(data))
			if wrong, ok := errors.AsType[*executor.SchemaError](err); !ok || !strings.Contains(wrong.Error(), "a number has more than 1000 digits, or an exponent beyond 400: "+number[:min(40, len(number))]) {
				t.Errorf("%.60s: %v", data, err)
			}
		}
		if _, err := Parse([]byte(`{"multipleOf": ` + number + `}`)); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a schema with %.60s: %v", number, err)
		}
	}
	for _, number := range []string{"1.7976931348623157e308", "5e-324", "0e400", strings.Repeat("9", 1000)} {
		if err := s.Check("result", []byte(`{"n": `+number+`}`)); err != nil {
			t.Errorf("%.60s: %v", number, err)
		}
	}
}
