package agent

import (
	"maps"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestModelVariables(t *testing.T) {
	t.Setenv("NO_PROXY", "intern.example")
	t.Setenv("no_proxy", "")
	gateway := &runnerscripts.Gateway{URL: "http://127.0.0.1:4", Token: "token", APIs: map[runnerscripts.ModelAPI]string{
		runnerscripts.APIAnthropic: "/anthropic", runnerscripts.APIOpenAI: "/house", "later": "/later",
	}}
	anthropic := map[string]string{"ANTHROPIC_BASE_URL": "http://127.0.0.1:4/anthropic", "ANTHROPIC_API_KEY": "token"}
	openai := map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:4/house", "OPENAI_API_KEY": "token"}
	beside := map[string]string{"NO_PROXY": "intern.example,127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
	for name, c := range map[string]struct {
		gateway *runnerscripts.Gateway
		env     map[string]string
		want    []map[string]string
	}{
		"no gateway":         {nil, nil, nil},
		"two APIs":           {gateway, map[string]string{"OTHER": "x"}, []map[string]string{anthropic, openai, beside}},
		"a key of one's own": {gateway, map[string]string{"ANTHROPIC_AUTH_TOKEN": "x"}, []map[string]string{openai, beside}},
		"two of them":        {gateway, map[string]string{"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "x"}, nil},
	} {
		want := map[string]string{}
		for _, m := range c.want {
			maps.Copy(want, m)
		}
		s := runnerscripts.Session{Gateway: c.gateway, Agent: runnerscripts.Agent{Env: c.env}}
		if got := ModelVariables(s); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
