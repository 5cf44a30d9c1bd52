package agent_test

import (
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestVariablesInServersAreThoseOfTheAgent(t *testing.T) {
	env := []string{"TOKEN=first", "TOKEN=a$b", "N=1"}
	servers := []rs.MCPServer{
		{Name: "a", Env: map[string]string{"KEY": "x ${TOKEN} ${N}", "DIR": "$HOME ${ not a name }"}},
		{Name: "b", Headers: map[string]string{"Authorization": "Bearer ${TOKEN}"}},
	}
	got, err := agent.Expand(servers, env)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Env["KEY"] != "x a$b 1" || got[0].Env["DIR"] != "$HOME ${ not a name }" || got[1].Headers["Authorization"] != "Bearer a$b" {
		t.Errorf("%+v", got)
	}
	if servers[0].Env["KEY"] != "x ${TOKEN} ${N}" {
		t.Error("the servers that were given have changed")
	}
	servers[1].Headers["Authorization"] = "${MISSING}"
	if _, err := agent.Expand(servers, env); err == nil || !strings.Contains(err.Error(), "MISSING") || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("without the variable: %v", err)
	}
}
