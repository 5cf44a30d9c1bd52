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
	f, api := newSession(t)
	f.session.Agent.Command = []string{testagents.OpenCode(t), "acp"}
	config := filepath.Join(f.session.Paths.Home, "opencode.json")
	f.session.Agent.Env = map[string]string{
		"OPENCODE_CONFIG": config, "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
		"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
	}
	const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"cost":{"input":1,"output":2}}`
	agenttest.WriteFile(t, config, fmt.Sprintf(`{"model":"scripted/small","small_model":"scripted/small","autoupdate":false,
		"share":"disabled","enabled_providers":["scripted"],"permission":{"edit":"ask","bash":"ask"},
		"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":%q,"apiKey":"test-key"},
		"models":{"small":%s,"large":%s}}}}`, api.URL+"/v1", model, model))
	return f, api
}

// newSession returns a session without an agent, and a scripted model.
func newSession(t *testing.T) (*fixture, *llmapi.Server) {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Errorf("close the model: %v", err)
		}
	})
	return &fixture{t: t, session: agenttest.NewSession(t, agent.NewUUID(), name), out: agenttest.NewRecorder()}, api
}

// waitAsked waits for the permission request with index n.
func (f *fixture) waitAsked(n int) runnerscripts.PermissionRequest {
	f.t.Helper()
	f.out.Wait(f.t.Context(), f.t, func(runnerscripts.Event) bool { return len(f.requests()) > n })
	return f.requests()[n]
}

// TestRealAgentIsGuardedAndGetsItsServers tests what the driver suite does not: the guard, and MCP
// servers that have files or get a secret.
func TestRealAgentIsGuardedAndGetsItsServers(t *testing.T) {
	t.Parallel()
	f, api := newRealFixture(t)
	f.session.Agent.PermissionMode = "build" // a mode that asks, because of the configuration
	mcp := f.withServers()
	c := f.start()

	outside := filepath.Join(t.TempDir(), "outside.txt")
	f.prompt(c, "write-file `"+outside+"`")
	if _, err := os.Stat(outside); err == nil || len(f.requests()) != 0 {
		t.Errorf("the file is written: %v, asked %d times", err == nil, len(f.requests()))
	}
	for _, m := range mcp {
		f.callMCP(c, m, m.Server.Name+"_add")
		if last := lastOf(t, api); len(last.Results) != 1 || !strings.Contains(last.Results[0], "the sum is 5") {
			t.Errorf("%s: the model was sent the results %q", m.Server.Name, last.Results)
		}
	}
	f.sameTranscript()
	// The library that OpenCode unpacks at each start is the session's, and goes with the program.
	library := filepath.Join(filepath.Dir(record.File(f.session)), "unpacked-*", ".*.so")
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
	f, api := newSession(t)
	f.session.Agent.Command = []string{testagents.Gemini(t), "--acp", "--model", "gemini-2.5-pro"}
	f.session.Agent.Config = []byte(`{"auth_method":"gemini-api-key"}`)
	f.session.Agent.Env = map[string]string{"GOOGLE_GEMINI_BASE_URL": api.URL, "GEMINI_API_KEY": "test-key", "GEMINI_CLI_NO_RELAUNCH": "true"}
	c := f.start()
	first := inner(c).peer
	for range 2 {
		if _, err := c.Prompt(t.Context(), "q", "http-400"); !agenttest.HasCode(err, runnerscripts.FailQuery) {
			t.Errorf("error %v", err)
		}
	}
	f.prompt(c, "plain-text")
	if got := f.said(); !strings.Contains(got, "Hello from the scripted model.") || inner(c).peer != first {
		t.Errorf("the agent said %q, and was started again: %v", got, inner(c).peer != first)
	}
}

// withServers gives the session an MCP server of each kind, with a secret.
func (f *fixture) withServers() []*agenttest.MCP {
	f.t.Helper()
	servers := []*agenttest.MCP{agenttest.StdioMCP(f.t, "calc"), agenttest.HTTPMCP(f.t, "web"), agenttest.BundledMCP(f.t, "brought")}
	f.session.Agent.Env["CALC_TOKEN"] = "the-secret"
	servers[0].Server.Env["TOKEN"] = "${CALC_TOKEN}"
	servers[1].Server.Headers = map[string]string{"X-Token": "${CALC_TOKEN}"}
	for _, m := range servers {
		f.profile.MCPServers = append(f.profile.MCPServers, m.Server)
	}
	// A server that ends at once does no harm.
	f.profile.MCPServers = append(f.profile.MCPServers, runnerscripts.MCPServer{Name: "broken", Command: []string{"false"}})
	if _, err := f.driver.Setup(f.t.Context(), runnerscripts.SetupRequest{Session: f.session, Profile: f.profile}); err != nil {
		f.t.Fatal(err)
	}
	return servers
}

// callMCP makes the model call the tool of a server, and allows the call if the agent asks.
func (f *fixture) callMCP(c agent.Conversation, m *agenttest.MCP, tool string) {
	f.t.Helper()
	asked := len(f.requests())
	wait := f.promptAsync(c, "call-tool `"+tool+` {"a":2,"b":3}`+"`")
	f.out.Wait(f.t.Context(), f.t, func(runnerscripts.Event) bool { return len(m.Calls()) > 0 || len(f.requests()) > asked })
	if all := f.requests(); len(all) > asked {
		if err := c.Respond(f.t.Context(), all[asked].ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
			f.t.Fatal(err)
		}
	}
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	calls := m.Calls()
	if len(calls) != 1 {
		f.t.Fatalf("%s was called %d times", tool, len(calls))
	}
	switch m.Server.Name {
	case "calc":
		if !slices.Contains(m.Env(), "TOKEN=the-secret") {
			f.t.Errorf("its environment is %q", m.Env())
		}
	case "web":
		if calls[0].Header.Get("X-Token") != "the-secret" {
			f.t.Errorf("the header is %q", calls[0].Header)
		}
	}
}

func (f *fixture) requests() []runnerscripts.PermissionRequest {
	f.t.Helper()
	return agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.out.All(), runnerscripts.TypePermissionRequest)
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
