package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// executorVariable is an environment variable that makes the test binary an executor that uses its
// MCP servers.
const executorVariable = "COMMAND_TEST_EXECUTOR"

// serveExecutor runs an executor if the test binary was started as one, and reports whether it was.
// The executor calls the tool "add" of each MCP server of its invocation with 2 and 3, and prints
// the answers.
func serveExecutor() bool {
	if os.Getenv(executorVariable) == "" {
		return false
	}
	var i executor.Invocation
	if err := json.NewDecoder(os.Stdin).Decode(&i); err != nil {
		panic(err)
	}
	for _, name := range slices.Sorted(maps.Keys(i.AgentBlueprint.MCPServers)) {
		answer, err := mcpServer(i.AgentBlueprint.MCPServers[name]).add()
		fmt.Printf("%s: %s %v\n", name, answer, err)
	}
	return true
}

const (
	helloLine = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","clientInfo":{"name":"x"}}}`
	addLine   = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":3}}}`
)

type mcpServer executor.MCPServer

// add calls the tool "add" of the server.
func (m mcpServer) add() (string, error) {
	if m.Type == "http" {
		return m.post(addLine)
	}
	cmd := exec.Command(m.Command, m.Args...)
	cmd.Env = os.Environ()
	for k, v := range m.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(helloLine + "\n" + addLine + "\n")
	out, err := cmd.Output()
	last := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		last = lines.Text()
	}
	return last, err
}

func (m mcpServer) post(line string) (string, error) {
	req, err := http.NewRequest(http.MethodPost, m.URL, strings.NewReader(line))
	if err != nil {
		return "", err
	}
	for k, v := range m.Headers {
		req.Header.Set(k, v)
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	return string(body), err
}

func TestExecutorGetsTheMCPServers(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, "", "")
	f.setProfile(map[string]any{"type": "mcp", "command": []string{self}})
	f.Session.Agent.Env = map[string]string{executorVariable: "1", "SECRET": "the-secret"}
	calc, web, brought := agenttest.StdioMCP(t, "calc"), agenttest.HTTPMCP(t, "web"), agenttest.BundledMCP(t, "brought")
	calc.Server.Env["TOKEN"] = "${SECRET}"
	web.Server.Headers = map[string]string{"X-Token": "${SECRET}"}
	f.Profile.MCPServers = []runnerscripts.MCPServer{
		calc.Server, web.Server, brought.Server, {Name: "broken", Command: []string{"no-such-program"}},
	}
	f.SetUp()
	f.prompt(f.Start(), "add")
	if said := f.Said(); strings.Count(said, "the sum is 5") != 3 || !strings.Contains(said, "broken:  exec:") {
		t.Errorf("it said %q", said)
	}
	for _, m := range []*agenttest.MCP{calc, web, brought} {
		if n := len(m.Calls()); n != 1 {
			t.Errorf("%s was called %d times", m.Server.Name, n)
		}
	}
	if !slices.Contains(calc.Env(), "TOKEN=the-secret") || web.Calls()[0].Header.Get("X-Token") != "the-secret" {
		t.Errorf("environment %q, header %q", calc.Env(), web.Calls()[0].Header)
	}
}
