package executor

import (
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Violation says where JSON does not match a schema, and why.
type Violation = runnerscripts.Violation

// SchemaError means that JSON does not match its schema.
type SchemaError struct {
	// What names the JSON: "parameters" or "result".
	What       string
	Violations []Violation // at least one
}

// Error lists the violations.
func (e *SchemaError) Error() string {
	var all []string
	for _, v := range e.Violations {
		all = append(all, v.Path+": "+v.Message)
	}
	return "invalid " + e.What + ": " + strings.Join(all, "; ")
}
