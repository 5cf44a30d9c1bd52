package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/internal/jsonkeys"
)

// Decode decodes JSON into v. A key that v does not have is an error. where is the path of the
// value in the configuration, for messages.
func (r Reader) Decode(data []byte, v any, where string) error {
	var tree any
	if err := decodeNumbers(data, &tree); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := r.checkKeys(tree, reflect.TypeOf(v), where); err != nil {
		return err
	}
	data, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	return invalid(where, "%w", err)
}

// invalid returns the error of a value. An empty where means the whole configuration.
func invalid(where, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if where == "" {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrInvalid, where, err)
}

// meant suggests corrections for a key that is not in fields.
func (r Reader) meant(key string, fields map[string]reflect.Type) string {
	names := slices.Sorted(maps.Keys(fields))
	advice := "there are: " + strings.Join(names, ", ")
	if name := closest.Name(key, names); name != "" {
		return "did you mean " + name + "? " + advice
	}
	if key == "permission" || key == "permissions" {
		key = "permission_mode"
	}
	if at := r.settingNamed(key, r.Config, ""); at != "" {
		return "did you mean " + at + "? " + advice
	}
	return advice
}

// settingNamed returns the path of the first key with this name in a configuration; empty for
// none.
func (r Reader) settingNamed(key string, t reflect.Type, where string) string {
	if t.Kind() != reflect.Struct {
		return ""
	}
	fields := r.fields(t)
	if _, ok := fields[key]; ok {
		return jsonkeys.Join(where, key)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if at := r.settingNamed(key, fields[name], jsonkeys.Join(where, name)); at != "" {
			return at
		}
	}
	return ""
}

// decodeNumbers decodes JSON without rounding its numbers.
func decodeNumbers(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec.Decode(v)
}

var durationType = reflect.TypeFor[time.Duration]()

// readDuration converts a duration such as "2h" to the number that encoding/json reads.
func readDuration(value any, where string) (any, error) {
	text, ok := value.(string)
	if d, err := time.ParseDuration(text); ok && err == nil {
		return int64(d), nil
	}
	return nil, invalid(where, "%s is no duration; write 90s or 2h", shown(value))
}

// Settings returns v as decoded JSON, with durations in the form that [Reader.Decode] reads.
func Settings(v any) (map[string]any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var settings map[string]any
	if err := decodeNumbers(data, &settings); err != nil {
		return nil, err
	}
	writeDurations(settings, reflect.TypeOf(v))
	return settings, nil
}

// writeDurations is the inverse of readDuration, for all durations below a value.
func writeDurations(value any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	settings, ok := value.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return
	}
	for name, field := range jsonFields(t) {
		number, is := settings[name].(json.Number)
		if n, err := number.Int64(); is && err == nil && field == durationType {
			settings[name] = time.Duration(n).String()
		}
		writeDurations(settings[name], field)
	}
}

// checkKeys checks a decoded value against the type for it. It converts durations to numbers, and
// the number of a user to a text.
func (r Reader) checkKeys(value any, t reflect.Type, where string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return checkValue(value, t, where)
	}
	if !fits(value, t) {
		say := given
		if t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 {
			say = shown
		}
		return invalid(where, "it is %s; give %s", say(value), wanted(t.Kind()))
	}
	switch value := value.(type) {
	case map[string]any:
		if t.Kind() == reflect.Map {
			for key, v := range value {
				if err := r.checkKeys(v, t.Elem(), jsonkeys.Join(where, key)); err != nil {
					return err
				}
			}
			return nil
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
		fields := r.fields(t)
		for key, v := range value {
			field, ok := fields[key]
			if !ok {
				return fmt.Errorf("%w: unknown key %s; %s", ErrInvalid, jsonkeys.Join(where, key), r.meant(key, fields))
			}
			if field == durationType && v != nil {
				number, err := readDuration(v, jsonkeys.Join(where, key))
				if err != nil {
					return err
				}
				value[key] = number
				continue
			}
			if id, is := v.(json.Number); is && key == "user" && fitsNumber(id.String(), reflect.TypeFor[uint32]()) {
				value[key], v = id.String(), id.String() // of a user without a name
			}
			if err := r.checkKeys(v, field, jsonkeys.Join(where, key)); err != nil {
				return err
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for i, v := range value {
			if err := r.checkKeys(v, t.Elem(), fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkValue returns the error of decoding a value into a type with its own UnmarshalJSON.
func checkValue(value any, t reflect.Type, where string) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, reflect.New(t).Interface())
	}
	if err == nil || errors.Is(err, ErrInvalid) {
		return err // the error says where
	}
	return invalid(where, "%w", err)
}

// fits reports whether a decoded value can be read into a type.
func fits(value any, t reflect.Type) bool {
	k := t.Kind()
	switch value := value.(type) {
	case map[string]any:
		return k == reflect.Struct || k == reflect.Map || k == reflect.Interface
	case []any:
		return k == reflect.Slice || k == reflect.Interface
	case string:
		return k == reflect.String || k == reflect.Interface || k == reflect.Slice && t.Elem().Kind() == reflect.Uint8
	case bool:
		return k == reflect.Bool || k == reflect.Interface
	case json.Number:
		return k == reflect.Interface || fitsNumber(value.String(), t)
	}
	return true // null is the zero value of anything
}

// fitsNumber reports whether a type can hold the number.
func fitsNumber(number string, t reflect.Type) bool {
	err := strconv.ErrSyntax
	switch k := t.Kind(); {
	case k >= reflect.Int && k <= reflect.Int64:
		_, err = strconv.ParseInt(number, 10, t.Bits())
	case k >= reflect.Uint && k <= reflect.Uintptr:
		_, err = strconv.ParseUint(number, 10, t.Bits())
	case k == reflect.Float32, k == reflect.Float64:
		_, err = strconv.ParseFloat(number, t.Bits())
	}
	return err == nil
}

// wanted returns the configuration files' word for a kind of value.
func wanted(k reflect.Kind) string {
	switch {
	case k == reflect.Struct, k == reflect.Map:
		return "a mapping (key: value)"
	case k == reflect.Slice:
		return "a list"
	case k == reflect.String:
		return "a text"
	case k == reflect.Bool:
		return "true or false"
	case k >= reflect.Int && k <= reflect.Int64:
		return "a whole number"
	case k >= reflect.Uint && k <= reflect.Uintptr:
		return "a whole number from 0"
	}
	return "a number"
}

// shown is given, but it quotes a text. It is for values that are no secrets: numbers and
// durations.
func shown(value any) string {
	if text, ok := value.(string); ok && len(text) <= 100 {
		return strconv.Quote(text)
	}
	return given(value)
}

func given(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "a text"
	default:
		return fmt.Sprint(v)
	}
}

// fields returns the keys of a struct: its fields and its blocks.
func (r Reader) fields(t reflect.Type) map[string]reflect.Type {
	fields := jsonFields(t)
	if r.Blocks != nil {
		maps.Copy(fields, r.Blocks(t))
	}
	return fields
}

// jsonFields returns the fields of a struct by their name in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" && name != "" {
			fields[name] = f.Type
		}
	}
	return fields
}
