package codex

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mcpVariable makes the test binary an MCP server.
const mcpVariable = "AGENTENV_TEST_MCP_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(mcpVariable) != "" {
		serveMCP()
		return
	}
	goleak.VerifyTestMain(m)
}

// serveMCP serves one tool over standard input and output.
func serveMCP() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Version   string         `json:"protocolVersion"`
				Arguments map[string]int `json:"arguments"`
			} `json:"params"`
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || len(m.ID) == 0 {
			continue
		}
		result := any(map[string]any{})
		switch m.Method {
		case "initialize":
			result = map[string]any{
				"protocolVersion": m.Params.Version, "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]string{"name": "calc", "version": "1"},
			}
		case "tools/list":
			number := map[string]string{"type": "number"}
			result = map[string]any{"tools": []any{map[string]any{
				"name": "add", "description": "adds two numbers",
				"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"a": number, "b": number}},
			}}}
		case "tools/call":
			sum := m.Params.Arguments["a"] + m.Params.Arguments["b"]
			result = map[string]any{"content": []any{map[string]string{"type": "text", "text": fmt.Sprintf("the sum is %d", sum)}}}
		}
		reply, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", reply)
	}
}

// withMCP gives the agent the MCP server "calc".
func (f *fixture) withMCP() {
	f.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(f.session.Agent.Config, &config); err != nil {
		f.t.Fatal(err)
	}
	config["mcp_servers"] = map[string]any{"calc": map[string]any{
		"command": exe, "env": map[string]string{mcpVariable: "1"},
	}}
	f.session.Agent.Config = jsonOf(config)
}

const callAdd = "call-tool `mcp__calc/add {\"a\":2,\"b\":3}`"

func TestToolOfAnMCPServerAsksAndIsCalled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind   runnerscripts.PermissionKind
		status runnerscripts.ToolStatus
		told   string
		asked  int // in two prompts
	}{
		{runnerscripts.AllowOnce, runnerscripts.ToolCompleted, "the sum is 5", 2},
		{runnerscripts.AllowAlways, runnerscripts.ToolCompleted, "the sum is 5", 1},
		{runnerscripts.RejectOnce, runnerscripts.ToolFailed, "rejected", 2},
	} {
		t.Run(string(tt.kind), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.withMCP()
			c := f.start()
			asked := 0
			for range 2 {
				asked += f.promptAndAnswer(c, callAdd, runnerscripts.PermissionDecision{Kind: tt.kind})
				if got := strings.Join(f.lastRequest().Results, " "); !strings.Contains(got, tt.told) {
					t.Errorf("the model was told %q", got)
				}
			}
			if asked != tt.asked {
				t.Errorf("asked %d times", asked)
			}
			call := agenttest.Fold(t, f.out.All()).Blocks[2].Tool
			if call == nil || call.Name != "calc/add" || call.Status != tt.status || string(call.RawInput) != `{"a":2,"b":3}` {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			if tt.kind.Allows() && (len(call.Content) != 1 || call.Content[0].Content.Text != "the sum is 5") {
				t.Errorf("content: %s", agenttest.Show(t, call.Content))
			}
			f.sameAsTranscript()
		})
	}
}

func TestMCPServerThatDoesNotStartIsToldAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.Config = []byte(`{"mcp_servers":{"broken":{"command":"/no/such/program"}},` + string(f.session.Agent.Config[1:]))
	f.prompt(f.start(), "plain-text")
	logs := agenttest.Payloads[runnerscripts.Log](t, f.out.All(), runnerscripts.TypeLog)
	told := false
	for _, l := range logs {
		told = told || l.Level == "warn" && strings.Contains(l.Message, "broken")
	}
	if !told {
		t.Errorf("logs: %+v", logs)
	}
}
