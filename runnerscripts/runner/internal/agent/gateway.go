package agent

import (
	"net/url"
	"os"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// modelVariables are the variables that agents read for each API.
var modelVariables = map[runnerscripts.ModelAPI]struct {
	url  string
	keys []string // the first is set
}{
	runnerscripts.APIAnthropic: {"ANTHROPIC_BASE_URL", []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}},
	runnerscripts.APIOpenAI:    {"OPENAI_BASE_URL", []string{"OPENAI_API_KEY"}},
	runnerscripts.APIGemini:    {"GOOGLE_GEMINI_BASE_URL", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
}

// Gateway returns the base addresses at which the session's agent reaches each API without a
// key. It omits APIs whose key is in Agent.Env.
func Gateway(s runnerscripts.Session) map[runnerscripts.ModelAPI]string {
	found := map[runnerscripts.ModelAPI]string{}
	if s.Gateway == nil {
		return found
	}
	for api, path := range s.Gateway.APIs {
		variables, known := modelVariables[api]
		for _, key := range variables.keys {
			_, own := s.Agent.Env[key]
			known = known && !own
		}
		if base, err := url.JoinPath(s.Gateway.URL, path); known && err == nil {
			found[api] = base
		}
	}
	return found
}

// KeyVariable returns the variable that holds the token for an API.
func KeyVariable(api runnerscripts.ModelAPI) string { return modelVariables[api].keys[0] }

// GatewayVariables returns the environment variables that point agents and their commands to
// the gateway's APIs and its proxy. Requests to the gateway itself bypass the proxy.
func GatewayVariables(s runnerscripts.Session) map[string]string {
	vars := s.Gateway.Variables()
	for api, base := range Gateway(s) {
		vars[modelVariables[api].url], vars[modelVariables[api].keys[0]] = base, s.Gateway.Token
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if len(vars) > 0 {
			vars[name] = strings.TrimPrefix(os.Getenv(name)+","+runnerscripts.NoProxy, ",")
		}
	}
	return vars
}
