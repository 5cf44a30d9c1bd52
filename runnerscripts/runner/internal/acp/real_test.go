package acp

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// newRealFixture returns a session of OpenCode, a real ACP agent, with a scripted model. The driver
// knows only the agent's command.
func newRealFixture(t *testing.T) (*fixture, *llmapi.Server) {
	t.Helper()
	f, api := newScripted(t)
	f.Session.Agent.Command = []string{testagents.OpenCode(t), "acp"}
	config := filepath.Join(f.Session.Paths.Home, "opencode.json")
	f.Session.Agent.Env = map[string]string{
		"TMPDIR": t.TempDir(), "OPENCODE_CONFIG": config, "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
		"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
	}
	const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"cost":{"input":1,"output":2}}`
	agenttest.WriteFile(t, config, fmt.Sprintf(`{"model":"scripted/small","small_model":"scripted/small","autoupdate":false,
		"share":"disabled","enabled_providers":["scripted"],"permission":{"edit":"ask","bash":"ask"},
		"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":%q,"apiKey":"test-key"},
		"models":{"small":%s,"large":%s}}}}`, api.URL+"/v1", model, model))
	return f, api
}

// newScripted returns a session without an agent, and a scripted model.
func newScripted(t *testing.T) (*fixture, *llmapi.Server) {
	t.Helper()
	f := newSession(t)
	f.StartModel()
	return f, f.API
}

// TestRealAgentIsGuardedAndGetsItsServers tests what the driver suite does not: the guard, and MCP
// servers that have files or get a secret.
func TestRealAgentIsGuardedAndGetsItsServers(t *testing.T) {
	t.Parallel()
	f, api := newRealFixture(t)
	f.Session.Agent.PermissionMode = "build" // a mode that asks, because of the configuration
	mcp := f.withServers()
	c := f.Start()

	outside := filepath.Join(t.TempDir(), "outside.txt")
	f.Prompt(c, "write-file `"+outside+"`")
	if _, err := os.Stat(outside); err == nil || len(f.Requests()) != 0 {
		t.Errorf("the file is written: %v, asked %d times", err == nil, len(f.Requests()))
	}
	for _, m := range mcp {
		f.callMCP(c, m, m.Server.Name+"_add")
		if last := lastOf(t, api); len(last.Results) != 1 || !strings.Contains(last.Results[0], "the sum is 5") {
			t.Errorf("%s: the model was sent the results %q", m.Server.Name, last.Results)
		}
	}
	f.SameAsTranscript()
	// The library that OpenCode unpacks at each start is the session's, and goes with the program.
	library := filepath.Join(filepath.Dir(record.File(f.Session)), "unpacked-*", ".*.so")
	if made, err := filepath.Glob(library); err != nil || len(made) == 0 {
		t.Errorf("%s: %v, %v", library, made, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Dir(library)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRealAgentOutlivesAFailureOfItsModel tests Gemini CLI, which cannot load its session again if
// it was ended after such a failure.
func TestRealAgentOutlivesAFailureOfItsModel(t *testing.T) {
	t.Parallel()
	f, api := newScripted(t)
	f.Session.Agent.Command = []string{testagents.Gemini(t), "--acp", "--model", "gemini-2.5-pro"}
	f.Session.Agent.Config = []byte(`{"auth_method":"gemini-api-key"}`)
	f.Session.Agent.Env = map[string]string{
		"TMPDIR": t.TempDir(), "GOOGLE_GEMINI_BASE_URL": api.URL, "GEMINI_API_KEY": "test-key", "GEMINI_CLI_NO_RELAUNCH": "true",
	}
	c := f.Start()
	first := inner(c).peer
	for range 2 {
		if _, err := c.Prompt(t.Context(), "q", "http-400"); !agenttest.HasCode(err, runnerscripts.FailQuery) {
			t.Errorf("error %v", err)
		}
	}
	f.Prompt(c, "plain-text")
	if got := f.Said(); !strings.Contains(got, "Hello from the scripted model.") || inner(c).peer != first {
		t.Errorf("the agent said %q, and was started again: %v", got, inner(c).peer != first)
	}
}

// withServers gives the session an MCP server of each kind, with a secret.
func (f *fixture) withServers() []*agenttest.MCP {
	f.Helper()
	servers := []*agenttest.MCP{agenttest.StdioMCP(f, "calc"), agenttest.HTTPMCP(f, "web"), agenttest.BundledMCP(f, "brought")}
	f.Session.Agent.Env["CALC_TOKEN"] = "the-secret"
	servers[0].Server.Env["TOKEN"] = "${CALC_TOKEN}"
	servers[1].Server.Headers = map[string]string{"X-Token": "${CALC_TOKEN}"}
	for _, m := range servers {
		f.Profile.MCPServers = append(f.Profile.MCPServers, m.Server)
	}
	// A server that ends at once does no harm.
	f.Profile.MCPServers = append(f.Profile.MCPServers, runnerscripts.MCPServer{Name: "broken", Command: []string{"false"}})
	f.SetUp()
	return servers
}

// callMCP makes the model call the tool of a server, and allows the call if the agent asks.
func (f *fixture) callMCP(c agent.Conversation, m *agenttest.MCP, tool string) {
	f.Helper()
	asked := len(f.Requests())
	wait := f.PromptAsync(c, "call-tool `"+tool+` {"a":2,"b":3}`+"`")
	f.Out.Wait(f.Context(), f, func(runnerscripts.Event) bool { return len(m.Calls()) > 0 || len(f.Requests()) > asked })
	if all := f.Requests(); len(all) > asked {
		if err := c.Respond(f.Context(), all[asked].ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	calls := m.Calls()
	if len(calls) != 1 {
		f.Fatalf("%s was called %d times", tool, len(calls))
	}
	switch m.Server.Name {
	case "calc":
		if !slices.Contains(m.Env(), "TOKEN=the-secret") {
			f.Errorf("its environment is %q", m.Env())
		}
	case "web":
		if calls[0].Header.Get("X-Token") != "the-secret" {
			f.Errorf("the header is %q", calls[0].Header)
		}
	}
}

// lastOf returns the last request to the model that offers tools. Agents also send requests for
// titles.
func lastOf(t *testing.T, api *llmapi.Server) llmapi.Request {
	t.Helper()
	var last llmapi.Request
	for _, r := range api.Requests() {
		if len(r.Tools) > 0 {
			last = r
		}
	}
	if last.Path == "" {
		t.Fatal("the model was asked nothing")
	}
	return last
}
