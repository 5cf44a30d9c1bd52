package acp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestAgentGetsTheMCPServersAtEachStart(t *testing.T) {
	t.Parallel()
	for _, offers := range []string{"http,load", "http,resume"} {
		t.Run(offers, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, offers)
			f.Session.Agent.Env["TOKEN"] = "secret"
			f.Profile.MCPServers = []runnerscripts.MCPServer{
				{Name: "shell", Command: []string{"sh", "-c", "cat"}, Env: map[string]string{"B": "${TOKEN}", "A": "1"}},
				{Name: "web", URL: "http://127.0.0.1:1/mcp", Headers: map[string]string{"Authorization": "Bearer ${TOKEN}"}},
			}
			c := f.Start()
			f.Prompt(c, "servers")
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			f.Prompt(f.Start(), "servers")
			want := []string{
				`{"args":["-c","cat"],"command":"/`,
				`/sh","env":[{"name":"A","value":"1"},{"name":"B","value":"secret"}],"name":"shell"}`,
				`{"headers":[{"name":"Authorization","value":"Bearer secret"}],"name":"web","type":"http","url":"http://127.0.0.1:1/mcp"}`,
			}
			for _, w := range want {
				if said := f.Said(); strings.Count(said, w) != 2 {
					t.Errorf("the agent got %s, want twice %s", said, w)
				}
			}
		})
	}
}

func TestMCPServerWithoutAProgramIsToldAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Profile.MCPServers = []runnerscripts.MCPServer{
		{Name: "missing", Command: []string{"no-such-program"}},
		{Name: "workspace", Command: []string{"./bin/server"}},
	}
	agenttest.WriteFile(t, filepath.Join(f.Session.Paths.Workspace, "bin", "server"), "#!/bin/sh\n")
	if err := os.Chmod(filepath.Join(f.Session.Paths.Workspace, "bin", "server"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.Prompt(f.Start(), "servers")
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || logs[0].Level != "error" || !strings.Contains(logs[0].Message, `"missing"`) {
		t.Errorf("logs: %+v", logs)
	}
	if said := f.Said(); strings.Contains(said, "missing") || !strings.Contains(said, f.Session.Paths.Workspace+"/bin/server") {
		t.Errorf("the agent got %s", said)
	}
}

func TestMCPServerThatTheAgentCannotReachIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	f.Profile.MCPServers = []runnerscripts.MCPServer{{Name: "web", URL: "http://127.0.0.1:1/mcp"}}
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), `"web"`) {
		t.Errorf("error %v", err)
	}
	f.Profile.MCPServers[0].Headers = map[string]string{"X": "${NOT_SET}"}
	if _, err := f.TryStart(); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "NOT_SET") {
		t.Errorf("error %v", err)
	}
}

func TestToolsForFilesStayInTheWorkspace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	workspace := f.Session.Paths.Workspace
	if err := os.Symlink(t.TempDir(), filepath.Join(workspace, "out")); err != nil {
		t.Fatal(err)
	}
	c := f.Start()
	for _, prompt := range []string{"edit /etc/passwd", "reads /etc/passwd", "edit " + workspace + "/out/file", "reads " + workspace + "/../x"} {
		f.Prompt(c, prompt)
	}
	if said := f.Said(); strings.Count(said, `"optionId":"no-1"`) != 4 || strings.Count(said, "is outside of the workspace") != 4 {
		t.Errorf("the agent got %s", said)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 4 || !strings.Contains(logs[0].Message, "work on /etc/passwd was not allowed") {
		t.Errorf("logs: %+v", logs)
	}
	if n := len(f.Requests()); n != 0 {
		t.Errorf("asked %d times", n)
	}
	f.SameAsTranscript()

	f.allow(c, "edit "+workspace+"/file")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.Session.SessionID = agent.NewUUID()
	f.Session.Agent.AllowOutside = true
	f.allow(f.Start(), "edit /etc/passwd")
	if said := f.Said(); strings.Count(said, `"optionId":"yes-1"`) != 2 {
		t.Errorf("the agent got %s", said)
	}
}

// allow runs a query that asks for one permission, and allows it.
func (f *fixture) allow(c agent.Conversation, text string) {
	f.Helper()
	n := len(f.Requests())
	wait := f.PromptAsync(c, text)
	if err := c.Respond(f.Context(), f.AskedAgain(n).ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		f.Fatal(err)
	}
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
}
