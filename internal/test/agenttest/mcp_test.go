package agenttest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if ServeMCP() {
		return
	}
	os.Exit(m.Run())
}

// dialogue contains a client's messages; version and sum are parts of the answers.
const (
	dialogue = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","clientInfo":{"name":"x"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":"b","method":"tools/list"}
{"method":"tools/call","params":{"name":"add","_meta":{"progressToken":9},"arguments":{"a":2,"b":30}},"jsonrpc":"2.0","id":2}
{"jsonrpc":"2.0","id":3,"method":"ping"}
`
	version = `"protocolVersion":"2025-06-18"`
	sum     = `{"content":[{"text":"the sum is 32","type":"text"}]}`
)

func TestMCPServersSpeakTheProtocolAndNoteWhatTheyGot(t *testing.T) {
	for name, start := range map[string]func(testing.TB, string) *MCP{"stdio": StdioMCP, "bundled": BundledMCP, "http": HTTPMCP} {
		t.Run(name, func(t *testing.T) {
			m := start(t, "calc")
			if got := m.Requests(); len(got) != 0 {
				t.Errorf("before the start: %+v", got)
			}
			var answers []string
			if m.Server.URL != "" {
				answers = overHTTP(t, m)
			} else {
				answers = overStdio(t, m)
				if !slices.Contains(m.Env(), "NOTED=yes") {
					t.Errorf("environment: %q", m.Env())
				}
			}
			if len(answers) != 4 || !strings.Contains(answers[0], version) || !strings.Contains(answers[1], `"id":"b"`) ||
				!strings.Contains(answers[1], `"name":"add"`) || !strings.Contains(answers[2], sum) || !strings.Contains(answers[3], `"result":{}`) {
				t.Errorf("answers: %q", answers)
			}
			calls := m.Calls()
			if len(m.Requests()) != 5 || len(calls) != 1 || calls[0].Params.Name != "add" || calls[0].Params.Arguments["b"] != 30 {
				t.Errorf("noted: %+v", m.Requests())
			}
			if m.Server.URL != "" && calls[0].Header.Get("X-Key") != "k" {
				t.Errorf("header: %v", calls[0].Header)
			}
		})
	}
}

func overStdio(t *testing.T, m *MCP) []string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range m.Server.Files {
		WriteFile(t, filepath.Join(dir, f.Path), f.Text)
	}
	install := exec.CommandContext(t.Context(), "/bin/sh", "-c", m.Server.Install)
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", `exec "$0" "$@"`}, m.Server.Command...)...)
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(dialogue), append(os.Environ(), "NOTED=yes")
	for k, v := range m.Server.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	return sortedKeys(t, strings.Split(strings.TrimSpace(string(out)), "\n"))
}

func overHTTP(t *testing.T, m *MCP) []string {
	t.Helper()
	var answers []string
	for line := range strings.Lines(dialogue) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.Server.URL, strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Key", "k")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || (res.StatusCode == http.StatusAccepted) != (len(body) == 0) {
			t.Errorf("%s %q, %v", res.Status, body, err)
		}
		if len(body) > 0 {
			answers = append(answers, string(body))
		}
	}
	return sortedKeys(t, answers)
}

// sortedKeys reformats JSON values with sorted keys.
func sortedKeys(t *testing.T, list []string) []string {
	t.Helper()
	for i, s := range list {
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		list[i] = string(data)
	}
	return list
}
