// Package schema describes the protocol of the runner scripts as JSON Schema. It generates the
// schema from the Go types by reflection, so that the two cannot differ.
package schema

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// object is a JSON object of a schema.
type object = map[string]any

// JSON returns the schema of the lines of the protocol, indented. Requests,
// control lines, events and results are in its $defs.
func JSON() ([]byte, error) {
	d := defs{}
	for name, v := range map[string]any{
		"SetupRequest":      runnerscripts.SetupRequest{},
		"QueryRequest":      runnerscripts.QueryRequest{},
		"TranscriptRequest": runnerscripts.TranscriptRequest{},
		"Control":           runnerscripts.Control{},
	} {
		d.ref(reflect.TypeOf(v))
		// The decoder refuses fields that it does not know.
		d[name].(object)["additionalProperties"] = false
	}
	for _, v := range []any{
		runnerscripts.Result{}, runnerscripts.SetupData{}, runnerscripts.Transcript{}, runnerscripts.Scenario{}, runnerscripts.Recipe{},
	} {
		d.ref(reflect.TypeOf(v))
	}
	d.ref(reflect.TypeFor[runnerscripts.Event]())
	d["Event"].(object)["allOf"] = d.payloads()
	d["Event"].(object)["required"] = []string{"type"} // scripts may leave the time to the host
	return json.MarshalIndent(object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "agentenv runner scripts",
		"description": "A script reads one request, execute-query then Control lines. It prints Event lines and a Result. Types that are not listed are carried through.",
		"protocol":    runnerscripts.Protocol,
		"anyOf": []object{
			ref("SetupRequest"), ref("QueryRequest"), ref("TranscriptRequest"), ref("Control"), ref("Event"), ref("Result"),
		},
		"$defs": d,
	}, "", "  ")
}

// defs maps the name of a Go type to its schema.
type defs object

// payloads returns a schema for each type of event that fixes its payload.
func (d defs) payloads() []object {
	var all []object
	for _, typ := range runnerscripts.EventTypes() {
		all = append(all, object{
			"if":   object{"properties": object{"type": object{"const": string(typ)}}},
			"then": object{"properties": object{"payload": d.of(runnerscripts.PayloadType(typ))}},
		})
	}
	return all
}

func ref(name string) object { return object{"$ref": "#/$defs/" + name} }

// ref returns a reference to a struct, and adds its schema once.
func (d defs) ref(t reflect.Type) object {
	if _, ok := d[t.Name()]; !ok {
		d[t.Name()] = nil // ends the recursion of a type that contains itself
		d[t.Name()] = d.structure(t)
	}
	return ref(t.Name())
}

// of returns the schema of any value of a type.
func (d defs) of(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.of(t.Elem())
	case reflect.Struct:
		if t.Name() == "" {
			return d.structure(t)
		}
		return d.ref(t)
	case reflect.Slice:
		return object{"type": "array", "items": d.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.of(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float64:
		return object{"type": "number"}
	default:
		return object{"type": "integer"}
	}
}

func (d defs) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	d.fields(t, properties, &required)
	s := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (d defs) fields(t reflect.Type, properties object, required *[]string) {
	for f := range fieldsOf(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			d.fields(f.Type, properties, required)
			continue
		case !f.IsExported() || name == "-":
			continue
		}
		properties[name] = d.of(f.Type)
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}
