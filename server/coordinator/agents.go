package coordinator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/executor/schema"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// promptSchema is the schema of the parameters of an agent without one.
const promptSchema = `{"type":"object","properties":{"prompt":{"type":"string","minLength":1}},"required":["prompt"],"additionalProperties":false}`

// checkAgent refuses an agent that could not be run.
func checkAgent(a coordapi.Agent) error {
	if a.Name == "" {
		return fmt.Errorf("%w: an agent has no name", fs.ErrInvalid)
	}
	if _, err := parametersSchema(a.ParametersSchema); err != nil {
		return fmt.Errorf("agent %s: parameters_schema: %w", a.Name, err)
	}
	if coordapi.IsSet(a.OutputSchema) {
		if _, err := (environment.Config{}).CheckOutputSchema(a.OutputSchema); err != nil {
			return fmt.Errorf("%w: agent %s: output_schema: %w", fs.ErrInvalid, a.Name, err)
		}
	}
	for name, h := range map[string]*coordapi.Hook{"on_run_start": a.Hooks.OnRunStart, "on_run_finish": a.Hooks.OnRunFinish} {
		switch {
		case h == nil:
		case h.AgentName == "":
			return fmt.Errorf("%w: agent %s: hooks.%s: agent_name is empty", fs.ErrInvalid, a.Name, name)
		case h.TimeoutSeconds < 0 || h.TimeoutSeconds > maxHookSeconds:
			return fmt.Errorf("%w: agent %s: hooks.%s: timeout_seconds is %d; give up to %d, or leave it out", fs.ErrInvalid, a.Name, name, h.TimeoutSeconds, maxHookSeconds)
		case h.OnError != "" && h.OnError != actionContinue && h.OnError != actionBlock:
			return fmt.Errorf("%w: agent %s: hooks.%s: on_error is %q; use continue or block", fs.ErrInvalid, a.Name, name, h.OnError)
		}
	}
	return nil
}

// agent is a blueprint with the demands of its runs.
type agent struct {
	coordapi.Agent
	demands coordapi.Demands
}

// agent returns the agent with a name; nil for no name. That of a runner runs there.
func (t *tx) agent(name string) (*agent, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // a run may have no agent
	}
	if a, ok := t.c.agents[name]; ok {
		return &agent{a, a.Demands}, nil
	}
	for _, r := range t.allRunners() {
		for _, a := range r.Agents {
			if a.Name != name {
				continue
			}
			demands, err := merge(coordapi.Demands{Hostname: r.Hostname, ProjectDir: r.ProjectDir, ExecutorProfile: r.ExecutorProfile}, a.Demands)
			return &agent{a, demands}, err
		}
	}
	return nil, named(http.StatusNotFound, "agent_not_found", "there is no agent %q; GET /agents lists them", name)
}

// otherAgent names the other owner of an agent name; empty if there is none.
func (t *tx) otherAgent(runner, name string) string {
	if _, ok := t.c.agents[name]; ok {
		return "the coordinator"
	}
	for _, r := range t.allRunners() {
		for _, a := range r.Agents {
			if r.ID != runner && a.Name == name {
				return "the runner " + r.ID
			}
		}
	}
	return ""
}

// parametersSchema returns the schema of parameters; that of a prompt if it is empty.
func parametersSchema(text json.RawMessage) (*schema.Schema, error) {
	if !coordapi.IsSet(text) {
		text = json.RawMessage(promptSchema)
	}
	return schema.Parse(text)
}

// checkParameters returns an error with all that is wrong about the parameters of a run. A resume has a prompt alone.
func (r *run) checkParameters(parameters json.RawMessage) error {
	var text json.RawMessage
	if r.Blueprint != nil && r.Type == coordapi.StartSession {
		text = r.Blueprint.ParametersSchema
	}
	s, err := parametersSchema(text)
	if err != nil { // of a runner that an earlier version has accepted
		return named(http.StatusConflict, "invalid_agent", "the parameters_schema of the agent cannot be used: %v; correct it, and register its runner again", err)
	}
	err = s.Check("parameters", parameters)
	wrong, ok := errors.AsType[*executor.SchemaError](err)
	if !ok {
		return err
	}
	detail := coordapi.Detail{Error: "parameter_validation_failed", Message: "the parameters do not match the schema of the agent"}
	switch {
	case r.Type == coordapi.ResumeSession:
		detail.Message = "a resume takes a prompt alone: give prompt, which may be JSON as a text"
	case !coordapi.IsSet(text):
		detail.Message = "without an agent that has a parameters_schema a run takes a prompt alone: give prompt, which may be JSON as a text, or name such an agent in agent_name"
	}
	for _, v := range wrong.Violations {
		detail.ValidationErrors = append(detail.ValidationErrors, coordapi.ValidationError(v))
	}
	return &failure{status: http.StatusBadRequest, err: err, detail: detail}
}

// allAgents returns the agents that runs may name, sorted by name.
func (c *Coordinator) allAgents() []coordapi.Agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Collect(maps.Values(c.agents))
	for _, r := range c.runners {
		list = append(list, r.Agents...)
	}
	slices.SortFunc(list, func(a, b coordapi.Agent) int { return cmp.Compare(a.Name, b.Name) })
	if list == nil {
		list = []coordapi.Agent{}
	}
	return list
}
