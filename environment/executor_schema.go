package environment

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/primitives"
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

// findExecutor returns an error if the program of the configured executor is missing, and this machine can
// know that before there is a sandbox.
func (c Config) findExecutor() error {
	command := c.executor().Command
	if len(command) == 0 {
		command = c.Agent.Command
	}
	if c.Agent.Name != commandAgent || len(command) == 0 || len(c.Scripts.SetupSession)+len(c.Scripts.ExecuteQuery) > 0 {
		return nil
	}
	p, err := c.Sandbox.provider(c)
	if err != nil {
		return err
	}
	finder, ok := p.(primitives.ProgramFinder)
	if !ok || slices.ContainsFunc(c.executor().Files, func(f runnerscripts.WorkspaceFile) bool { return f.Path == command[0] }) {
		return nil
	}
	env := (&primitives.Spec{Env: c.Agent.Env}).Environ()
	if err := finder.FindProgram(c.Sandbox.Spec, env, command[0]); err != nil {
		return &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailAgentMissing,
			Message: fmt.Sprintf("the program of the executor cannot be started: %v; install it, or correct the command of its profile, or agent.command", err),
		}
	}
	return nil
}

// CheckPrompt returns why the configured agent can get no such prompt: the parameters of an executor
// that do not match. It is the failure with which the query would end, a
// *runnerscripts.ScriptFailure, but needs no sandbox. For schemas that cannot be used it is [ErrConfig].
func (c Config) CheckPrompt(prompt string) error {
	s, err := c.schemas()
	if err != nil {
		return err
	}
	return s.checkPrompt(prompt)
}

// checkPrompt checks the parameters of a prompt, before anything is started.
func (s executorSchemas) checkPrompt(prompt string) error {
	parameters, err := s.profile.ParametersOf(prompt)
	if err == nil && s.parameters != nil {
		err = s.parameters.Check("parameters", parameters)
	}
	if err == nil && s.profile.Type == executor.Procedural {
		_, err = executor.Arguments(parameters)
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
