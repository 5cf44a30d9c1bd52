package agenttest

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// MCP is a server of the Model Context Protocol for an agent under test. It has one tool,
// "add", which answers add {"a":2,"b":3} with "the sum is 5". StdioMCP, BundledMCP and HTTPMCP
// create one.
type MCP struct {
	// Server is for the agent's profile. A test may add to its Env or Headers.
	Server runnerscripts.MCPServer

	t   testing.TB
	log string // a file with one request per line; log+".env" has the environment

	mu       sync.Mutex
	requests []MCPRequest // over HTTP
}

// MCPRequest is a message that the server received.
type MCPRequest struct {
	Method string          `json:"method"` // "initialize", "tools/list", "tools/call", ...
	ID     json.RawMessage `json:"id"`
	Params struct {
		ProtocolVersion string         `json:"protocolVersion"`
		Name            string         `json:"name"` // of the tool
		Arguments       map[string]int `json:"arguments"`
	} `json:"params"`
	// Header is the header of the HTTP request.
	Header http.Header `json:"-"`
}

// mcpLog makes the test binary an MCP server. Its value is the file for the requests.
const mcpLog = "AGENTENV_TEST_MCP_LOG"

// ServeMCP serves as the server of StdioMCP if the test binary was started as one, and reports
// whether it was. TestMain must call it first and return if it reports true.
func ServeMCP() bool {
	log := os.Getenv(mcpLog)
	if log == "" {
		return false
	}
	if err := serveStdio(log, os.Stdin, os.Stdout); err != nil {
		panic(err) // an agent may show the output of its servers
	}
	return true
}

func serveStdio(log string, in io.Reader, out io.Writer) error {
	if err := os.WriteFile(log+".env", []byte(strings.Join(os.Environ(), "\n")), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := f.Write(line); err != nil {
			return err
		}
		var r MCPRequest
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if reply := r.reply(); reply != nil {
			if _, err := fmt.Fprintf(out, "%s\n", reply); err != nil {
				return err
			}
		}
	}
}

// reply returns the answer to a request, or nil if it needs none.
func (r MCPRequest) reply() []byte {
	if len(r.ID) == 0 {
		return nil
	}
	result := any(map[string]any{})
	switch r.Method {
	case "initialize":
		result = map[string]any{
			"protocolVersion": r.Params.ProtocolVersion, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]string{"name": "calc", "version": "1"},
		}
	case "tools/list":
		number := map[string]string{"type": "number"}
		result = map[string]any{"tools": []any{map[string]any{
			"name": "add", "description": "adds two numbers",
			"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"a": number, "b": number}},
		}}}
	case "tools/call":
		sum := fmt.Sprintf("the sum is %d", r.Params.Arguments["a"]+r.Params.Arguments["b"])
		result = map[string]any{"content": []any{map[string]string{"type": "text", "text": sum}}}
	}
	reply, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": r.ID, "result": result})
	if err != nil {
		panic(err) // the id is the only external part, and it was valid JSON
	}
	return reply
}

// StdioMCP returns a server that is this test binary; see ServeMCP.
func StdioMCP(t testing.TB, name string) *MCP {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "requests")
	return &MCP{t: t, log: log, Server: runnerscripts.MCPServer{
		Name: name, Command: []string{exe}, Env: map[string]string{mcpLog: log},
	}}
}

//go:embed testdata/mcp.sh
var mcpScript string

// BundledMCP returns a server that includes its program, a shell script that works only after
// its install command has run.
func BundledMCP(t testing.TB, name string) *MCP {
	t.Helper()
	log := filepath.Join(t.TempDir(), "requests")
	return &MCP{t: t, log: log, Server: runnerscripts.MCPServer{
		Name: name, Command: []string{"./server", "with an argument"}, Env: map[string]string{"MCP_LOG": log},
		Files:   []runnerscripts.WorkspaceFile{{Path: "src/server.sh", Text: mcpScript}},
		Install: "cp src/server.sh server && chmod +x server",
	}}
}

// HTTPMCP returns a server that speaks streamable HTTP; it ends with the test.
func HTTPMCP(t testing.TB, name string) *MCP {
	t.Helper()
	m := &MCP{t: t}
	server := httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(func() {
		server.CloseClientConnections() // an agent may keep a connection open
		server.Close()
	})
	m.Server = runnerscripts.MCPServer{Name: name, URL: server.URL + "/mcp"}
	return m
}

func (m *MCP) serve(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost || req.URL.Path != "/mcp" {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	r := MCPRequest{}
	if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Header = req.Header.Clone()
	m.mu.Lock()
	m.requests = append(m.requests, r)
	m.mu.Unlock()
	reply := r.reply()
	if reply == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(reply) // the client may have disconnected
}

// Requests returns the requests received up to now, oldest first; none if the server was not
// started.
func (m *MCP) Requests() []MCPRequest {
	m.t.Helper()
	if m.log == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		return append([]MCPRequest(nil), m.requests...)
	}
	var list []MCPRequest
	for line := range strings.Lines(m.read(m.log)) {
		var r MCPRequest
		if !strings.HasSuffix(line, "\n") {
			break // the server is still writing it
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			m.t.Fatalf("the MCP server got %q: %v", line, err)
		}
		list = append(list, r)
	}
	return list
}

// Calls returns the tool calls among the requests.
func (m *MCP) Calls() []MCPRequest {
	m.t.Helper()
	var list []MCPRequest
	for _, r := range m.Requests() {
		if r.Method == "tools/call" {
			list = append(list, r)
		}
	}
	return list
}

// Env returns the environment of the server's process, as "NAME=value".
func (m *MCP) Env() []string {
	m.t.Helper()
	return strings.Split(strings.TrimSpace(m.read(m.log+".env")), "\n")
}

func (m *MCP) read(name string) string {
	m.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(data)
}
