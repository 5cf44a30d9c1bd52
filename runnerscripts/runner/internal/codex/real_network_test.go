package codex

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// through makes the agent use a proxy for everything but the scripted model.
func (f *fixture) through(p *agenttest.Proxy) {
	for _, key := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		f.Session.Agent.Env[key] = p.URL
		f.Session.Agent.Env[strings.ToLower(key)] = p.URL
	}
	f.Session.Agent.Env["NO_PROXY"], f.Session.Agent.Env["no_proxy"] = "127.0.0.1", "127.0.0.1"
}

func TestNoHostButThatOfTheModelIsContacted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := agenttest.StartProxy(t)
	f.through(p)
	f.Session.Agent.PermissionMode = "full-access"
	c := f.start()
	f.Prompt(c, "two-tools")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if hosts := p.Hosts(); len(hosts) != 0 {
		t.Errorf("hosts: %q", hosts)
	}
}

// This shows that the proxy of TestNoHostButThatOfTheModelIsContacted would have seen other hosts.
func TestModelElsewhereIsReachedThroughTheProxy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := agenttest.StartProxy(t)
	f.through(p)
	f.Session.Agent.Env[envBaseURL] = "https://model.invalid/v1"
	_, err := f.start().Prompt(t.Context(), "q", "plain-text")
	if !agenttest.HasCode(err, runnerscripts.FailAPI) {
		t.Errorf("error %v", err)
	}
	if hosts := p.Hosts(); len(hosts) == 0 || hosts[0] != "model.invalid:443" {
		t.Errorf("hosts: %q", hosts)
	}
}

func TestModelThatCannotBeReachedFailsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// Do not use a port that was free a moment ago: a parallel test may get it.
	f.Session.Agent.Env[envBaseURL] = "http://127.0.0.1:1/v1"
	c := f.start()
	_, err := c.Prompt(t.Context(), "q", "plain-text")
	if !agenttest.HasCode(err, runnerscripts.FailAPI) || !strings.Contains(err.Error(), "can be reached") {
		t.Errorf("error %v", err)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) == 0 {
		t.Error("the tries are not told")
	}
}

func TestAgentWithoutAKeyDoesNotStart(t *testing.T) {
	f := newFixture(t)
	t.Setenv(envKey, "")
	delete(f.Session.Agent.Env, envKey)
	f.Session.Agent.Config = nil
	_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, f.Out)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != http.StatusUnauthorized || !strings.Contains(failure.Message, envKey) {
		t.Errorf("error %v", err)
	}
}

func TestProviderWithoutItsKeyFailsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Config = []byte(`{"model_provider":"mine","model_providers":{"mine":{
		"name":"Mine","base_url":"` + f.API.URL + `/v1","env_key":"NO_SUCH_KEY","wire_api":"responses"}}}`)
	_, err := f.start().Prompt(t.Context(), "q", "plain-text")
	if !agenttest.HasCode(err, runnerscripts.FailAPI) || !strings.Contains(err.Error(), "NO_SUCH_KEY") {
		t.Errorf("error %v", err)
	}
}
