package coordapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
)

// Decode decodes JSON that a person may have written, and refuses duplicate keys. If it is strict, it refuses unknown keys, too.
func Decode(data []byte, v any, strict bool) error {
	if err := Unmarshal(data, v); err != nil {
		return err
	}
	if err := jsonkeys.Unique(data); err != nil {
		return err
	}
	if !strict {
		return nil
	}
	return known(data, reflect.TypeOf(v), "")
}

// Unmarshal is json.Unmarshal with errors that name the key, and no type of Go.
func Unmarshal(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("invalid JSON: it has bytes that are no UTF-8")
	}
	err := json.Unmarshal(data, v)
	if syntax, is := errors.AsType[*json.SyntaxError](err); is {
		return fmt.Errorf("invalid JSON: %w, after %d bytes", err, syntax.Offset)
	}
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		where := wrong.Field
		if where != "" {
			where += ": "
		}
		return fmt.Errorf("%sit is %s; give %s", where, ofJSON(wrong.Value), ofType(wrong.Type))
	}
	return err
}

// known returns an error for a key that a type does not have. Values of another type are left to encoding/json.
func known(data json.RawMessage, t reflect.Type, where string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()):
	case t.Kind() == reflect.Slice:
		var list []json.RawMessage
		_ = json.Unmarshal(data, &list)
		for i, item := range list {
			if err := known(item, t.Elem(), fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct:
		fields := make(map[string]reflect.Type)
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				fields[name] = f.Type
			}
		}
		var object map[string]json.RawMessage
		_ = json.Unmarshal(data, &object)
		for _, key := range slices.Sorted(maps.Keys(object)) {
			at := jsonkeys.Join(where, key)
			if fields[key] == nil {
				return unknown(at, key, slices.Sorted(maps.Keys(fields)))
			}
			if err := known(object[key], fields[key], at); err != nil {
				return err
			}
		}
	}
	return nil
}

// unknown returns the error of a key that is none of names.
func unknown(at, key string, names []string) error {
	advice := "."
	if name := closest.Name(key, names); name != "" {
		advice = "; did you mean " + name + "?"
	}
	return fmt.Errorf("%s: there is no such key%s There are: %s", at, advice, strings.Join(names, ", "))
}

// ofJSON names a kind of JSON values in the words of a user. Some come with the value, as in "number 1.5".
func ofJSON(kind string) string {
	kind, value, _ := strings.Cut(kind, " ")
	names := map[string]string{"string": "a text", "array": "a list", "object": "an object", "number": "a number", "bool": "true or false"}
	return strings.TrimSpace(names[kind] + " " + value)
}

// ofType names what a Go type takes.
func ofType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Bool:
		return "true or false"
	default:
		return "a whole number"
	}
}
