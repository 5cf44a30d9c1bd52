package environment

import (
	"encoding/json"
	"fmt"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// executorSchemas checks what goes to an executor and what comes from it. The zero value checks nothing.
type executorSchemas struct {
	profile            executor.Profile
	parameters, result *schema.Schema // nil for none
}

// schemas returns the schemas of the configured executor. Errors are [ErrConfig].
func (c Config) schemas() (s executorSchemas, err error) {
	if c.Agent.Name != commandAgent || json.Unmarshal(c.Agent.Config, &s.profile) != nil {
		return executorSchemas{}, nil // the runner reports a profile that it cannot decode
	}
	for _, one := range []struct {
		field string
		text  json.RawMessage
		to    **schema.Schema
	}{{"parameters_schema", s.profile.ParametersSchema, &s.parameters}, {"output_schema", s.profile.OutputSchema, &s.result}} {
		if len(one.text) == 0 {
			continue
		}
		if *one.to, err = schema.Parse(one.text); err != nil {
			return executorSchemas{}, fmt.Errorf("%w: agent.config: %s: %w", ErrConfig, one.field, err)
		}
	}
	return s, nil
}

// checkPrompt checks the parameters of a prompt, before anything is started.
func (s executorSchemas) checkPrompt(prompt string) error {
	if s.parameters == nil {
		return nil
	}
	parameters, err := s.profile.ParametersOf(prompt)
	if err == nil {
		err = s.parameters.Check("parameters", parameters)
	}
	return query.Mismatch(runnerscripts.FailParameters, err, nil)
}

// checkResult checks the result of a query that is completed.
func (s executorSchemas) checkResult(result json.RawMessage) error {
	if s.result == nil {
		return nil
	}
	return query.Mismatch(runnerscripts.FailOutput, s.result.Check("result", result), result)
}
