package schema

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentenv-dev/agentenv/executor"
)

// Invocation returns the JSON schema of [executor.Invocation], indented.
func Invocation() ([]byte, error) {
	s, err := jsonschema.For[executor.Invocation](nil)
	if err != nil {
		return nil, err
	}
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "Executor invocation "+executor.SchemaVersion
	s.Description = "The first line of the standard input of an executor. A field that is not listed is ignored with a warning."
	s.AdditionalProperties = nil
	var version any = executor.SchemaVersion
	s.Properties["schema_version"].Const = &version
	s.Properties["mode"].Enum = []any{string(executor.Start), string(executor.Resume)}
	s.Properties["parameters"] = &jsonschema.Schema{
		Type: "object", Description: `{"prompt": TEXT}, or what the parameters_schema of the profile describes`,
	}
	for _, name := range []string{"executor_config", "metadata"} {
		s.Properties[name].Type, s.Properties[name].Types, s.Properties[name].Items = "object", nil, nil
	}
	return json.MarshalIndent(s, "", "  ")
}
