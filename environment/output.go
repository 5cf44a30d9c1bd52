package environment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/primitives"
)

// MaxOutputSchema limits Query.OutputSchema: 64 KiB.
const MaxOutputSchema = 64 << 10

// CheckOutputSchema returns a Query.OutputSchema without its white space; nil for an empty one. The error is
// primitives.ErrLimit if it has more than [MaxOutputSchema] bytes, and fs.ErrInvalid if it is no JSON schema of draft
// 2020-12 or the earlier draft that its $schema names, from 4 on, or refers to another file, which is never loaded. It is
// errors.ErrUnsupported for an executor that has schemas of its own, or whose prompts are parameters.
func (c Config) CheckOutputSchema(text json.RawMessage) (json.RawMessage, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if len(text) > MaxOutputSchema {
		return nil, fmt.Errorf("output schema: %w: it has %d bytes; give one of at most %d KiB", primitives.ErrLimit, len(text), MaxOutputSchema>>10)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("output schema: %w: it is no JSON: %w", fs.ErrInvalid, err)
	}
	if _, err := schema.Parse(text); err != nil {
		return nil, fmt.Errorf("output schema: %w", err)
	}
	var p executor.Profile
	if c.Agent.Name == commandAgent && json.Unmarshal(c.Agent.Config, &p) == nil {
		switch {
		case len(p.OutputSchema) > 0:
			return nil, fmt.Errorf("output schema: %w: the executor's profile has an output_schema, which holds for all its queries; leave this one out", errors.ErrUnsupported)
		case len(p.ParametersSchema) > 0 || p.Type == executor.Procedural:
			return nil, fmt.Errorf("output schema: %w: the prompts of this executor are parameters, so it cannot be asked for JSON; give its profile an output_schema", errors.ErrUnsupported)
		}
	}
	return compact.Bytes(), nil
}
