package coordinator_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
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
