package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// envctl runs envctl, which must succeed, and returns its standard output.
func envctl(t *testing.T, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "envctl", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, stderr.Bytes())
	}
	return string(out)
}

// TestClaudeDelegatesToCodex has two real agents in two containers without a network: the one starts the other through the
// gateway, which brings both to their models.
func TestClaudeDelegatesToCodex(t *testing.T) {
	alone(t)
	url := startModel(t, "127.0.0.1:0") // unreachable from containers
	for name, value := range map[string]string{
		"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": url, "OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": url + "/v1",
	} {
		t.Setenv(name, value)
	}
	programs, err := filepath.Abs("../../e2e/agents")
	if err != nil {
		t.Fatal(err)
	}
	box := environment.Sandbox{
		Type: "docker", Spec: primitives.Spec{Image: testdocker.Node(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second},
		Provider: &docker.Provider{Pull: docker.PullNever, Mounts: []docker.Mount{{Source: programs, Target: programs, ReadOnly: true}}},
	}
	coder := configFile(t, map[string]any{
		"sandbox": box, "agent": map[string]any{"name": "codex", "model": "gpt-5.5", "command": []string{testagents.Codex(t)}},
		"permissions": map[string]any{"mode": "auto"},
	})
	config := configFile(t, map[string]any{
		"sandbox": box, "agent": map[string]any{"name": "claude", "command": []string{testagents.Claude(t)}},
		"delegation":  map[string]any{"agents": map[string]any{"coder": coder}},
		"permissions": map[string]any{"mode": "auto"}, "budget": map[string]any{"session": map[string]any{"requests": 50}},
	})
	out := envctl(t, "run", "--json", "--config", config,
		"please call-tool `mcp__agents__start_agent_session {\"agent_blueprint_name\":\"coder\",\"prompt\":\"please write-file\",\"wait_seconds\":300}`")
	if !strings.Contains(out, `\"result\":\"The file is written.\"`) || !strings.Contains(out, `"stop_reason":"end_turn"`) {
		t.Errorf("the result of the other agent is not in its events:\n%s", out)
	}
	type record struct {
		Agent     string            `json:"agent"`
		Metadata  map[string]string `json:"metadata"`
		Sandboxes []string          `json:"sandboxes"`
		ID        string            `json:"id"`
	}
	found := map[string]record{}
	for line := range strings.Lines(envctl(t, "sessions", "ls", "--json")) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		found[r.Agent] = r
	}
	codex, claude := found["codex"], found["claude"]
	if codex.Metadata["delegated_by"] != claude.ID || codex.Metadata["delegate"] != "coder" {
		t.Errorf("the sessions are %+v", found)
	}
	if len(codex.Sandboxes) != 1 || len(claude.Sandboxes) != 1 || codex.Sandboxes[0] == claude.Sandboxes[0] {
		t.Errorf("they were in %v and %v", codex.Sandboxes, claude.Sandboxes)
	}
	if left := envctl(t, "ls", "--json"); strings.Contains(left, codex.ID) {
		t.Errorf("its sandbox is left: %s", left)
	}
}

// TestMCPOverStdio has a client of this machine that starts an agent by 'envctl mcp'.
func TestMCPOverStdio(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	agent := filepath.Join(dir, "writer.yaml")
	if err := os.WriteFile(agent, []byte("agent: {name: script, config: {turns: [{steps: [{ask: {write: {path: f, content: x}}}, {text: 'over {{prompt}}'}]}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "envctl", "mcp", "--delegate", "writer="+agent, "--permission", "allow")
	cmd.Stderr = &stderr
	c, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: patience}, nil)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "start_agent_session", Arguments: map[string]any{"agent_blueprint_name": "writer", "prompt": "hi"}})
	if err != nil || result.IsError || !strings.Contains(result.Content[0].(*mcp.TextContent).Text, `"result":"over hi"`) {
		t.Errorf("%v, %+v", err, result)
	}
	if err := c.Close(); err != nil {
		t.Errorf("%v: %s", err, stderr.Bytes())
	}
	if list := envctl(t, "sessions", "ls"); !strings.Contains(list, "script") {
		t.Errorf("the sessions are %s", list)
	}
}

// TestDelegatesOfAnAgentInASandbox grants others to an agent in a sandbox that is there, and to one that goes on.
func TestDelegatesOfAnAgentInASandbox(t *testing.T) {
	alone(t)
	agent := file(t, "a.yaml", "agent: script\n")
	config := configFile(t, map[string]any{"agent": map[string]any{"name": "command", "command": []string{"sh", "-c", "cat"}}})
	const tool = "127.0.0.1:"
	id := strings.TrimSpace(envctl(t, "create"))
	for _, args := range [][]string{
		{"run", "--in", id, "--config", config, "--delegate", "a=" + agent, "hi"},
		{"run", "--config", config, "--delegate", "a=" + agent, "--name", "kept", "--keep", "hi"},
		{"attach", "kept", "hi"},
	} {
		if out := envctl(t, args...); !strings.Contains(out, tool) || !strings.Contains(out, "/mcp") {
			t.Errorf("%v: the agent has no tools: %s", args, out)
		}
	}
	envctl(t, "rm", id, "kept")
}

// startsAnother is an agent that starts another one with the tools that it has, and says what they answer.
const startsAnother = `IFS= read -r line; url=${line#*'"url":"'}
curl -s -H "Authorization: Bearer $AGENTENV_GATEWAY_TOKEN" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d \
'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_agent_session","arguments":{"agent_blueprint_name":"a","prompt":"hi"}}}' "${url%%'"'*}"`

// TestDelegatesOfServedAgents has sessions of a server, and of an editor, whose agents start others.
func TestDelegatesOfServedAgents(t *testing.T) {
	alone(t)
	agent := file(t, "a.yaml", "agent: {name: script, config: {turns: [{steps: [{text: 'over {{prompt}}'}]}]}}\n")
	config := configFile(t, map[string]any{
		"sandbox": "local", "agent": map[string]any{"name": "command", "command": []string{"sh", "-c", startsAnother}},
		"delegation": map[string]any{"agents": map[string]any{"a": agent}},
	})
	const want = "over hi"
	if out := promptServed(t, config); !strings.Contains(out, want) {
		t.Errorf("at /acp of a server the other agent says nothing: %s", out)
	}
	e := startEditor(t, "--config", config)
	id, _ := e.session()
	if e.say(id, "hi"); !strings.Contains(e.text(id), want) {
		t.Errorf("in an editor the other agent says nothing: %s", e.text(id))
	}
	if err := e.end(); err != nil {
		t.Error(err)
	}
}

// promptServed sends a prompt to a session at /acp of a server with a configuration, and returns all messages.
func promptServed(t *testing.T, config string) string {
	t.Helper()
	url, token := serveClients(t, config)
	conn, res, err := websocket.Dial(t.Context(), url+"/acp", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatalf("%v, %v", err, res)
	}
	defer conn.CloseNow()
	var all strings.Builder
	ask := func(id int, method, params string) (result struct{ SessionID string }) {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`, id, method, params)
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(line)); err != nil {
			t.Fatal(err)
		}
		for {
			_, data, err := conn.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all.Write(data)
			var message struct {
				ID     int
				Result any
			}
			message.Result = &result
			if err := json.Unmarshal(data, &message); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			if message.ID == id {
				return result
			}
		}
	}
	ask(1, "initialize", `{"protocolVersion":1}`)
	id := ask(2, "session/new", `{"cwd":"/","mcpServers":[]}`).SessionID
	ask(3, "session/prompt", `{"sessionId":"`+id+`","prompt":[{"type":"text","text":"hi"}]}`)
	return all.String()
}

// TestWhatMCPRefuses checks calls that exit with 2 and say what to do.
func TestWhatMCPRefuses(t *testing.T) {
	alone(t)
	agent := file(t, "a.yaml", "agent: script\n")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"there is no agent to start", []string{"mcp"}},
		{"NAME=FILE", []string{"mcp", "--delegate", "a"}},
		{"delegation.agents.a", []string{"mcp", "--delegate", "a=" + agent + ".not"}},
		{"choose allow or deny", []string{"mcp", "--delegate", "a=" + agent, "--permission", "ask"}},
		{"delegation.agents.a", []string{"run", "--agent", "claude", "--delegate", "a=" + agent + ".not", "hi"}},
		{"uses no MCP servers over HTTP", []string{"run", "--delegate", "a=" + agent, "hi"}},
		{"the files of a delegation are of this machine", []string{"run", "--server", "http://127.0.0.1:1", "--delegate", "a=" + agent, "hi"}},
	} {
		var out, errOut bytes.Buffer
		if code := Execute(t.Context(), strings.NewReader(""), &out, &errOut, c.args); code != 2 || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("%v: %d %s", c.args, code, errOut.String())
		}
	}
}
