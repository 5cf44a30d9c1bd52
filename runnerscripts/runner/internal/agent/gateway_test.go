package agent

import (
	"maps"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestGatewayVariables(t *testing.T) {
	t.Setenv("NO_PROXY", "intern.example")
	t.Setenv("no_proxy", "")
	gateway := &runnerscripts.Gateway{URL: "http://127.0.0.1:4", Token: "token", APIs: map[runnerscripts.ModelAPI]string{
		runnerscripts.APIAnthropic: "/anthropic", runnerscripts.APIOpenAI: "/house", "later": "/later",
	}}
	anthropic := map[string]string{"ANTHROPIC_BASE_URL": "http://127.0.0.1:4/anthropic", "ANTHROPIC_API_KEY": "token"}
	openai := map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:4/house", "OPENAI_API_KEY": "token"}
	beside := map[string]string{"NO_PROXY": "intern.example,127.0.0.1,localhost,::1", "no_proxy": "127.0.0.1,localhost,::1"}
	proxy := &runnerscripts.Gateway{URL: "http://127.0.0.1:5", Token: "secret", Proxy: true}
	proxied := map[string]string{"NODE_USE_ENV_PROXY": "1", "GIT_HTTP_PROXY_AUTHMETHOD": "basic"}
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		proxied[name] = "http://agentenv:secret@127.0.0.1:5"
	}
	coordinator := &runnerscripts.Gateway{URL: "http://127.0.0.1:6", Token: "secret", CoordinatorSession: "ses_1"}
	executor := map[string]string{"AGENT_ORCHESTRATOR_API_URL": "http://127.0.0.1:6/coordinator/secret", "AGENT_SESSION_ID": "ses_1"}
	for name, c := range map[string]struct {
		gateway *runnerscripts.Gateway
		env     map[string]string
		want    []map[string]string
	}{
		"no gateway":         {nil, nil, nil},
		"two APIs":           {gateway, map[string]string{"OTHER": "x"}, []map[string]string{anthropic, openai, beside}},
		"a key of one's own": {gateway, map[string]string{"ANTHROPIC_AUTH_TOKEN": "x"}, []map[string]string{openai, beside}},
		"a proxy":            {proxy, nil, []map[string]string{proxied, beside}},
		"a coordinator":      {coordinator, nil, []map[string]string{executor, beside}},
		"two of them":        {gateway, map[string]string{"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "x"}, nil},
	} {
		want := map[string]string{}
		for _, m := range c.want {
			maps.Copy(want, m)
		}
		s := runnerscripts.Session{Gateway: c.gateway, Agent: runnerscripts.Agent{Env: c.env}}
		if got := GatewayVariables(s); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
