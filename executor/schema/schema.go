// Package schema checks JSON against JSON schemas, and says all that does not match. It is for hosts:
// the runner in a sandbox does without the library.
package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentenv-dev/agentenv/executor"
)

// base is the URL of a schema that has no $id.
const base = "schema:///"

// Schema is a JSON schema: of draft 2020-12, or of the earlier draft that its $schema names, from 4 on.
// Its methods may be called from several goroutines.
type Schema struct {
	compiled *jsonschema.Schema

	mu       sync.Mutex
	compiler *jsonschema.Compiler
}

// standalone refuses to load what a schema refers to.
type standalone struct{}

// Load returns an error.
func (standalone) Load(string) (any, error) {
	return nil, errors.New("nothing is loaded; put what it refers to into its $defs")
}

// Parse parses a JSON schema and checks it against the schema of its draft. It loads nothing: a schema
// that refers to another file is fs.ErrInvalid, as are other errors.
func Parse(data []byte) (*Schema, error) {
	doc, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrInvalid, err)
	}
	s := &Schema{compiler: jsonschema.NewCompiler()}
	s.compiler.UseLoader(standalone{})
	if err = s.compiler.AddResource(base, doc); err == nil {
		s.compiled, err = s.compiler.Compile(base)
	}
	if wrong, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if found, ok := errors.AsType[*jsonschema.ValidationError](wrong.Err); ok {
			return nil, fmt.Errorf("%w: %w", fs.ErrInvalid, &executor.SchemaError{What: "JSON schema", Violations: s.list(found, doc)})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: it is no JSON schema that stands alone: %s", fs.ErrInvalid, strings.ReplaceAll(err.Error(), base, ""))
	}
	return s, nil
}

// Check returns a [*executor.SchemaError] if data does not match the schema. what names the data.
func (s *Schema) Check(what string, data []byte) error {
	value, err := decode(data)
	if err != nil {
		return &executor.SchemaError{What: what, Violations: []executor.Violation{{Path: "$", Message: err.Error()}}}
	}
	err = s.compiled.Validate(value)
	if wrong, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return &executor.SchemaError{What: what, Violations: s.list(wrong, value)}
	}
	return err
}

// decode decodes JSON without rounding its numbers.
func decode(data []byte) (any, error) {
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err) // it says more than that of the decoder
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = checkNumbers(value)
	}
	return value, err
}

const (
	// maxDigits and maxExponent bound numbers, which are compared without rounding: the library computes 1e1000000 in full, and
	// panics beyond that. Every float64 is within.
	maxDigits, maxExponent = 1000, 400
)

// checkNumbers returns an error for a number beyond the bounds.
func checkNumbers(value any) error {
	switch v := value.(type) {
	case json.Number:
		digits, exponent, _ := strings.Cut(strings.ToLower(v.String()), "e")
		if n, err := strconv.Atoi(cmp.Or(exponent, "0")); err != nil || max(n, -n) > maxExponent || len(digits) > maxDigits {
			return fmt.Errorf("a number has more than %d digits, or an exponent beyond %d: %.40s", maxDigits, maxExponent, v)
		}
	case []any:
		for _, item := range v {
			if err := checkNumbers(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, item := range v {
			if err := checkNumbers(item); err != nil {
				return err
			}
		}
	}
	return nil
}
