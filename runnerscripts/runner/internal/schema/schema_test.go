package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// validator checks values against the part of JSON Schema that this package
// writes; anything else in a schema is an error.
type validator struct{ defs object }

func (v validator) check(s object, value any, at string) error {
	for key, arg := range s {
		if err := v.keyword(s, key, arg, value, at); err != nil {
			return err
		}
	}
	return nil
}

func (v validator) keyword(s object, key string, arg, value any, at string) error {
	m, isObject := value.(object)
	switch key {
	case "$ref":
		return v.check(v.defs[strings.TrimPrefix(arg.(string), "#/$defs/")].(object), value, at)
	case "type":
		if got := typeOf(value); got != arg && (arg != "number" || got != "integer") {
			return fmt.Errorf("%s is %s, want %s", at, got, arg)
		}
	case "properties":
		for name, sub := range arg.(object) {
			if field, ok := m[name]; ok && isObject {
				if err := v.check(sub.(object), field, at+"."+name); err != nil {
					return err
				}
			}
		}
	case "required":
		for _, name := range arg.([]any) {
			if _, ok := m[name.(string)]; !ok {
				return fmt.Errorf("%s has no %s", at, name)
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(object)
		for name, field := range m {
			if sub, ok := arg.(object); ok {
				if err := v.check(sub, field, at+"."+name); err != nil {
					return err
				}
			} else if _, ok := known[name]; !ok && arg == false {
				return fmt.Errorf("%s has an unknown %s", at, name)
			}
		}
	case "items":
		for i, item := range value.([]any) {
			if err := v.check(arg.(object), item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case "allOf":
		for _, sub := range arg.([]any) {
			if err := v.check(sub.(object), value, at); err != nil {
				return err
			}
		}
	case "if":
		if v.check(arg.(object), value, at) == nil {
			return v.check(s["then"].(object), value, at)
		}
	case "const":
		if value != arg {
			return fmt.Errorf("%s is %v, want %v", at, value, arg)
		}
	case "then", "format", "contentEncoding":
	default:
		return fmt.Errorf("the schema has the keyword %s, which this test does not know", key)
	}
	return nil
}

func typeOf(value any) string {
	switch n := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if n == float64(int64(n)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

func load(t *testing.T) validator {
	t.Helper()
	raw, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	var s object
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	return validator{defs: s["$defs"].(object)}
}

func (v validator) line(def, line string) error {
	var value any
	if err := json.Unmarshal([]byte(line), &value); err != nil {
		return err
	}
	return v.check(v.defs[def].(object), value, def)
}

func TestGoldenEventsKeepTheSchema(t *testing.T) {
	v := load(t)
	files, err := filepath.Glob("../../../testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			if err := v.line("Event", string(line)); err != nil {
				t.Errorf("%s: %v\n%s", name, err, line)
			}
		}
	}
}

func TestSchemaHasEveryTypeOfEvent(t *testing.T) {
	raw, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range runnerscripts.EventTypes() {
		if !bytes.Contains(raw, []byte(`"const": "`+string(typ)+`"`)) {
			t.Errorf("the schema has no %s", typ)
		}
	}
}

func TestSchemaRefusesWhatTheDecoderRefuses(t *testing.T) {
	v := load(t)
	const good = `{"protocol":2,"session_id":"s","agent":{"name":"a"},"paths":{"session":"/s","app":"/a","workspace":"/w","home":"/h","mcp":"/m"}`
	cases := []struct {
		def, line string
		ok        bool
	}{
		{"QueryRequest", good + `,"prompt":"p"}`, true},
		{"QueryRequest", good + `,"promt":"p"}`, false},
		{"QueryRequest", good + `,"prompt":5}`, false},
		{"QueryRequest", `{"protocol":2}`, false},
		{"SetupRequest", good + `,"files":[{"path":"a","content":"aGk=","mode":420}],"transcript":{"main":""}}`, true},
		{"SetupRequest", good + `,"files":[{"content":"aGk="}]}`, false},
		{"Control", `{"type":"permission","id":"p","decision":{"kind":"allow_once"}}`, true},
		{"Control", `{"id":"p"}`, false},
		{"Result", `{"type":"result","ok":true,"data":{"any":1}}`, true},
		{"Result", `{"type":"result"}`, false},
		{"Event", `{"type":"log","payload":{"message":"m"}}`, false},
		{"Event", `{"type":"log","payload":{"level":"info","message":1}}`, false},
		{"Event", `{"type":"of tomorrow","payload":[1]}`, true},
	}
	for _, c := range cases {
		if err := v.line(c.def, c.line); (err == nil) != c.ok {
			t.Errorf("%s %s: %v, want ok %v", c.def, c.line, err, c.ok)
		}
	}
}

func TestSchemaIsTheSameEachTime(t *testing.T) {
	first, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if again, err := JSON(); err != nil || !slices.Equal(first, again) {
			t.Fatal("the schema differs from one time to the next", err)
		}
	}
}
