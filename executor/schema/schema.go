// Package schema checks JSON against JSON schemas, and says all that does not match. It is for hosts:
// the runner in a sandbox does without the library.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentenv-dev/agentenv/executor"
)

// maxViolations bounds the list of violations.
const maxViolations = 20

// Schema is a JSON schema, of draft 2020-12 or draft 7.
type Schema struct {
	root     *jsonschema.Schema
	resolved *jsonschema.Resolved
}

// Parse parses a JSON schema. It loads nothing: a schema that refers to another file is
// fs.ErrInvalid, as are other errors.
func Parse(data []byte) (*Schema, error) {
	s := new(Schema)
	if err := json.Unmarshal(data, &s.root); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON schema: %w", fs.ErrInvalid, err)
	}
	if s.root == nil {
		return nil, fmt.Errorf("%w: it is null; give a JSON schema", fs.ErrInvalid)
	}
	var err error
	if s.resolved, err = s.root.CloneSchemas().Resolve(nil); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON schema that stands alone: %w", fs.ErrInvalid, err)
	}
	return s, nil
}

// Check returns a [*executor.SchemaError] if data does not match the schema. what names the data.
func (s *Schema) Check(what string, data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return &executor.SchemaError{What: what, Violations: []executor.Violation{{Path: "$", Message: "it is no JSON: " + err.Error()}}}
	}
	err := s.resolved.Validate(value)
	if err == nil {
		return nil
	}
	c := &checker{root: s.root}
	c.look(s.root, value, "$", "")
	if len(c.found) == 0 { // the parts match, the whole does not
		c.add("$", "", cause(err))
	}
	return &executor.SchemaError{What: what, Violations: c.found}
}

// checker finds all parts of a value that do not match: the library stops at the first.
type checker struct {
	root  *jsonschema.Schema
	found []executor.Violation
}

func (c *checker) add(at, schemaAt, message string) {
	if len(c.found) < maxViolations {
		c.found = append(c.found, executor.Violation{Path: at, Message: message, SchemaPath: strings.TrimPrefix(schemaAt, "/")})
	}
}

// look adds the violations of a value, those of its parts before its own.
func (c *checker) look(s *jsonschema.Schema, value any, at, schemaAt string) {
	err := c.validate(s, value)
	if err == nil || len(c.found) >= maxViolations {
		return
	}
	for range 10 { // a chain of references; one that never ends is left to the library
		name, defs := strings.CutPrefix(s.Ref, "#/$defs/")
		from := c.root.Defs
		if !defs {
			name, defs = strings.CutPrefix(s.Ref, "#/definitions/")
			from = c.root.Definitions
		}
		if !defs || from[name] == nil {
			break
		}
		s, schemaAt = from[name], strings.TrimPrefix(s.Ref, "#")
	}
	before := len(c.found)
	switch value := value.(type) {
	case map[string]any:
		c.object(s, value, at, schemaAt)
	case []any:
		for i, v := range value {
			if s.Items != nil {
				c.look(s.Items, v, fmt.Sprintf("%s[%d]", at, i), schemaAt+"/items")
			}
		}
	}
	if len(c.found) == before {
		message := cause(err)
		keyword, _, _ := strings.Cut(message, ":")
		c.add(at, schemaAt+"/"+keyword, message)
	}
}

func (c *checker) object(s *jsonschema.Schema, value map[string]any, at, schemaAt string) {
	for _, name := range s.Required {
		if _, ok := value[name]; !ok {
			c.add(at, schemaAt+"/required", fmt.Sprintf("%q is required", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		child := at + "." + name
		if property := s.Properties[name]; property != nil {
			c.look(property, value[name], child, schemaAt+"/properties/"+name)
			continue
		}
		if s.AdditionalProperties == nil || len(s.PatternProperties) > 0 {
			continue
		}
		if c.validate(s.AdditionalProperties, value[name]) != nil {
			known := strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
			c.add(child, schemaAt+"/additionalProperties", "it is not allowed here; there are: "+known)
		}
	}
}

// validate validates a value against a part of the schema.
func (c *checker) validate(s *jsonschema.Schema, value any) error {
	alone := &jsonschema.Schema{Schema: c.root.Schema, Defs: c.root.Defs, Definitions: c.root.Definitions, AllOf: []*jsonschema.Schema{s}}
	resolved, err := alone.CloneSchemas().Resolve(nil)
	if err != nil {
		return err
	}
	return resolved.Validate(value)
}

// cause returns the innermost error, without the path in the schema.
func cause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
