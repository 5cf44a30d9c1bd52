package environment_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/agentenv-dev/agentenv/environment"
)

// A query with a schema ends with JSON that matches. An agent whose answer does not match is asked again.
func ExampleEnvironment_RunQuery() {
	ctx := context.Background()
	env, err := environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns": [
			{"steps": [{"text": "It is in a.go."}]}, {"steps": [{"text": "{\"file\": \"a.go\", \"line\": 7}"}]}]}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	done, err := env.RunQuery(ctx, environment.Query{
		Prompt: "Find the bug",
		OutputSchema: json.RawMessage(`{
			"type": "object", "required": ["file", "line"], "additionalProperties": false,
			"properties": {"file": {"type": "string"}, "line": {"type": "integer"}}}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	var bug struct {
		File string
		Line int
	}
	if err := json.Unmarshal(done.ResultData, &bug); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s:%d\n", bug.File, bug.Line)
	// Output: a.go:7
}
