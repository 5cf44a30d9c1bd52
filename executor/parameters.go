package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Structured reports whether a prompt is a JSON object with the parameters.
func (p Profile) Structured() bool { return p.Type == Procedural || len(p.ParametersSchema) > 0 }

// ParametersOf returns the parameters of a prompt. It does not check them against the schema of the
// profile; a prompt that is no JSON object is a [*SchemaError].
func (p Profile) ParametersOf(prompt string) (json.RawMessage, error) {
	if !p.Structured() {
		return Parameters(prompt), nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(prompt), &object); err != nil || object == nil {
		return nil, &SchemaError{What: "parameters", Violations: []Violation{{
			Path: "$", Message: `the prompt is no JSON object; give the parameters as one, such as {"name": "value"}`, SchemaPath: "type",
		}}}
	}
	return json.RawMessage(prompt), nil
}

// isOption reports whether a name can be that of an option.
func isOption(name string) bool {
	other := func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.'
	}
	return name != "" && name[0] != '-' && name[0] != '.' && (name[0] < '0' || name[0] > '9') && !strings.ContainsFunc(name, other)
}

// Arguments returns parameters as arguments of a procedural executor, sorted by name: "--name
// value". true is "--name" alone; false and null are left out; the elements of a list are joined by
// commas; an object is its JSON. What cannot be an argument is a [*SchemaError].
func Arguments(parameters json.RawMessage) ([]string, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(parameters, &values); err != nil {
		return nil, err
	}
	var args []string
	failed := &SchemaError{What: "parameters"}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !isOption(name) {
			failed.Violations = append(failed.Violations, Violation{Path: "$." + name, Message: "it cannot be the name of an option; use letters, digits, '_', '-' and '.'"})
			continue
		}
		switch value := string(values[name]); value {
		case "false", "null":
		case "true":
			args = append(args, "--"+name)
		default:
			text, err := argument(values[name])
			if err != nil {
				failed.Violations = append(failed.Violations, Violation{Path: "$." + name, Message: err.Error()})
				continue
			}
			args = append(args, "--"+name, text)
		}
	}
	if len(failed.Violations) > 0 {
		return nil, failed
	}
	return args, nil
}

// argument returns a value as one argument.
func argument(value json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(value, &text) == nil {
		if strings.ContainsRune(text, 0) {
			return "", errors.New("an argument cannot contain a NUL byte")
		}
		return text, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil {
		return string(value), nil // a number or an object
	}
	parts := make([]string, len(list))
	for i, v := range list {
		part, err := argument(v)
		if err != nil {
			return "", err
		}
		if strings.Contains(part, ",") {
			return "", fmt.Errorf("element %d of the list contains a comma, which separates elements; give an object or a text", i)
		}
		parts[i] = part
	}
	return strings.Join(parts, ","), nil
}
