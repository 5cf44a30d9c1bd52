package coordinator_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// What a user writes is data: claude-agent-orchestrator resolves placeholders twice, so that a parameter can read its environment.
func TestAParameterIsNoPlaceholder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const text = "${env.HOME} $HOME ${params.prompt} ${runtime.session_id} ${runner.orchestrator_mcp_url}"
		s := start(t, coordapi.Agent{Name: "mine", SystemPrompt: text})
		runner := s.register(coding)
		s.run(`{"type":"start_session","agent_name":"mine","prompt":"` + text + `"}`)
		if got := s.claim(runner); got.Prompt != text || string(got.Parameters) != `{"prompt":"`+text+`"}` || got.Blueprint.SystemPrompt != text {
			t.Errorf("the run is %+v", got)
		}
	})
}

// An agent that could never run, or whose runs could never end, is known when the coordinator opens.
func TestABadAgentIsRefused(t *testing.T) {
	for want, bad := range map[string]coordapi.Agent{
		"no name": {},
		"agent a: parameters_schema: .*$.type: value must be one of": {Name: "a", ParametersSchema: json.RawMessage(`{"type":"objct"}`)},
		"agent a: output_schema: .*nothing is loaded":                {Name: "a", OutputSchema: json.RawMessage(`{"$ref":"https://example.com/x"}`)},
		"agent a: output_schema: .*at most 64 KiB":                   {Name: "a", OutputSchema: json.RawMessage(`{"title":"` + strings.Repeat("x", 64<<10) + `"}`)},
		"agent a: hooks.on_run_start: agent_name is empty":           {Name: "a", Hooks: coordapi.Hooks{OnRunStart: &coordapi.Hook{}}},
		"agent a: hooks.on_run_start: timeout_seconds":               {Name: "a", Hooks: coordapi.Hooks{OnRunStart: &coordapi.Hook{AgentName: "b", TimeoutSeconds: 10_000_000_000}}},
	} {
		c, err := coordinator.Open(t.Context(), coordinator.Config{Dir: t.TempDir(), Agents: []coordapi.Agent{bad}})
		if err == nil {
			err = c.Close()
			t.Errorf("%s: it is accepted; %v", want, err)
			continue
		}
		if text := err.Error(); !errors.Is(err, fs.ErrInvalid) || !mentions(text, strings.Split(want, ".*")) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// mentions reports whether a text has all parts, in any order.
func mentions(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// Coordinators and runners of other makes send null where there is no schema.
func TestASchemaMayBeNull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, coordapi.Agent{Name: "a", ParametersSchema: json.RawMessage("null"), OutputSchema: json.RawMessage("null")})
		if r := s.run(`{"type":"start_session","agent_name":"a","prompt":"x"}`); string(r.Parameters) != `{"prompt":"x"}` {
			t.Errorf("the run is %+v", r)
		}
	})
}
