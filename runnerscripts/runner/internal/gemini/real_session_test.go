package gemini

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestResumeInANewProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeYOLO
	c := f.Start()
	f.Prompt(c, "the secret word is plum")
	f.Prompt(c, "two-tools")
	// Resume several times: the program can lose a session when it resumes it, and doubles the results
	// of calls each time.
	for n := range 3 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		before := len(f.Out.All())
		c = f.Start()
		done := f.Prompt(c, "remember")
		last := f.LastRequest()
		if len(last.Texts) != 3+2*n || last.Texts[0] != "the secret word is plum" {
			t.Fatalf("resumed %d times: the model was sent %q", n+1, last.Texts)
		}
		if done.Usage.InputTokens != last.Usage.InputTokens || done.Usage.CacheReadTokens != last.Usage.CacheReadTokens {
			t.Errorf("the costs before the resume are counted again: %+v", done.Usage)
		}
		for _, e := range f.Out.All()[before:] {
			if e.Type == runnerscripts.TypeToolCall || strings.Contains(string(e.Payload), "scripted model") {
				t.Errorf("the conversation before is told again: %s %s", e.Type, e.Payload)
			}
		}
		asked := len(f.API.Requests())
		if done, want := f.Prompt(c, "two-tools"), f.UsageAfter(asked); done.Usage != want {
			t.Errorf("resumed %d times: a query with tools costs %+v, want %+v", n+1, done.Usage, want)
		}
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 4 || init[0].Resumed || !init[1].Resumed || !init[2].Resumed || !init[3].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.SameAsTranscript()
}

// TestHistoryThatTheProgramShortensIsToldOnce runs a command that prints so much that the program
// writes its history again.
func TestHistoryThatTheProgramShortensIsToldOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeYOLO
	c := f.Start()
	f.Prompt(c, "first plain-text")
	f.Prompt(c, "run-command `seq 1 300000`")
	f.Prompt(c, "third plain-text")
	tr, stored := f.Transcript()
	if !strings.Contains(tr.Main, "agentenvForgotten") {
		t.Fatalf("the program has not written its history again: %.3000s", tr.Main)
	}
	agenttest.SameConversation(t, f.Out.All(), stored.All())
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = f.Start()
	f.Prompt(c, "fourth plain-text")
	_, stored = f.Transcript()
	agenttest.SameConversation(t, f.Out.All(), stored.All())
	// An output that is longer than the context of the model does not spoil the session.
	if done := f.Prompt(c, "run-command `head -c 4400000 /dev/zero | tr '\\0' x`"); done.StopReason != runnerscripts.StopMaxTokens {
		t.Errorf("the query with a long output ended with %q", done.StopReason)
	}
	f.Prompt(c, "remember")
	if said := f.Said(); !strings.Contains(said, "fourth plain-text") {
		t.Errorf("after it the agent said %q", said)
	}
}

func TestInterruptedFirstPromptDoesNotBreakTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "slow-stream")
	if err := f.API.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = f.Start()
	f.Prompt(c, "the secret word is plum")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.Prompt(f.Start(), "remember")
	if got := f.LastRequest().Texts; len(got) != 2 {
		t.Errorf("the model was sent %q", got)
	}
}

func TestFileTruncatedByACrashDoesNotBreakTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	f.Prompt(c, "plain-text")
	for _, tt := range []struct {
		name  string
		end   func(transcript string) string // the file after a crash
		texts int                            // number of texts in the next request to the model
	}{
		{"half a line", func(s string) string { return s + `{"id":"x","type":"user","cont` }, 2},
		{"without a message", func(s string) string { line, _, _ := strings.Cut(s, "\n"); return line + "\n" }, 1},
		{"empty", func(string) string { return "" }, 1},
	} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		found, ok, _, err := findChat(f.Session)
		if err != nil || !ok {
			t.Fatalf("no file: %v", err)
		}
		agenttest.WriteFile(t, found.path, tt.end(found.old))
		c = f.Start()
		f.Prompt(c, "remember")
		if got := f.LastRequest().Texts; len(got) != tt.texts {
			t.Errorf("%s: the model was sent %q", tt.name, got)
		}
		if tr, _ := f.Transcript(); !strings.Contains(tr.Main, "remember") {
			t.Errorf("%s: the transcript lacks the second prompt", tt.name)
		}
	}
}

func TestProgramThatIsAnotherOneIsRefused(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"fails": "echo 'the real reason' >&2; exit 3", "talks": "echo hello; cat >/dev/null", "ends": "exit 0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), programName)
			s.Agent.Command = []string{"/bin/sh", "-c", script}
			d := Driver{patience: 2 * time.Second}
			_, err := d.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "agent.command") {
				t.Errorf("start: %v", err)
			}
			_, err = d.Setup(t.Context(), runnerscripts.SetupRequest{Session: s})
			if name == "fails" && (!agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "the real reason")) {
				t.Errorf("setup: %v", err)
			}
		})
	}
}

// TestWorkspaceBringsNothingUnlessTrusted uses a workspace like a cloned repository that contains
// settings with commands.
func TestWorkspaceBringsNothingUnlessTrusted(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(map[bool]string{false: "untrusted", true: "trusted"}[trusted], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.TrustWorkspace = trusted
			f.Session.Agent.PermissionMode = modeYOLO
			agenttest.WriteFile(t, f.WorkspaceFile(".gemini/settings.json"), `{
				"mcpServers": {"evil": {"command": "/bin/sh", "args": ["-c", "touch mcp-ran"]}},
				"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch hook-ran"}]}],
				          "BeforeAgent": [{"hooks": [{"type": "command", "command": "touch hook-ran"}]}]}
			}`)
			agenttest.WriteFile(t, f.WorkspaceFile("GEMINI.md"), "Rule of the repository.")
			f.Profile.Hooks = []runnerscripts.Hook{{Event: "UserPromptSubmit", Command: "touch own-hook-ran"}}
			c := f.Start()
			f.Prompt(c, "run-command `touch worked`")
			if !f.Exists("worked") {
				t.Error("the command did not run")
			}
			if !f.Exists("own-hook-ran") {
				t.Error("the profile's hook did not run")
			}
			if f.Exists("mcp-ran") != trusted || f.Exists("hook-ran") != trusted {
				t.Errorf("the MCP server ran: %v, a hook: %v", f.Exists("mcp-ran"), f.Exists("hook-ran"))
			}
			if got := strings.Contains(string(f.LastRequest().Body), "Rule of the repository."); got != trusted {
				t.Errorf("the rule reaches the model: %v", got)
			}
		})
	}
}

func TestEnvFileOfTheWorkspaceIsNotRead(t *testing.T) {
	t.Parallel()
	for name, servers := range map[string][]runnerscripts.MCPServer{
		"plain": nil, "with MCP servers": {{Name: "x", Command: []string{"cat"}}}, // which make the program trust the folder
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			delete(f.Session.Agent.Env, "GEMINI_API_KEY")
			agenttest.WriteFile(t, f.WorkspaceFile(".env"), "GEMINI_API_KEY=key-of-the-repository\n")
			f.Profile.MCPServers = servers
			_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session, Profile: f.Profile}, f.Out)
			if !agenttest.HasCode(err, runnerscripts.FailAPI) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestWithoutAKeyTheStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	delete(f.Session.Agent.Env, "GEMINI_API_KEY")
	_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, f.Out)
	if !agenttest.HasCode(err, runnerscripts.FailAPI) || !strings.Contains(err.Error(), "agent.env") {
		t.Errorf("error %v", err)
	}
}

func TestNothingLeavesTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := agenttest.StartProxy(t)
	f.Session.Agent.Env["HTTPS_PROXY"], f.Session.Agent.Env["HTTP_PROXY"] = proxy.URL, proxy.URL
	f.Session.Agent.Env["NO_PROXY"] = "127.0.0.1"
	c := f.Start()
	f.Prompt(c, "plain-text")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = f.Start()
	f.Prompt(c, "remember")
	if _, err := c.Prompt(t.Context(), "q", "http-400"); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(f.Session.Paths.Workspace)
	if err != nil || len(entries) != 0 {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
	reports, err := filepath.Glob(filepath.Join(tempDir(f.Session), "gemini-client-error-*"))
	if err != nil || len(reports) == 0 {
		t.Errorf("the program's report of the error is not in the session's own folder: %v, %v", reports, err)
	}
	if hosts := proxy.Hosts(); len(hosts) != 0 {
		t.Errorf("it wanted to reach %q", hosts)
	}
}

func TestUnsupportedOptionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*runnerscripts.Session)
		code   runnerscripts.FailureCode
		word   string
	}{
		"max_turns": {func(s *runnerscripts.Session) { s.Agent.MaxTurns = 2 }, runnerscripts.FailUnsupported, "agent.max_turns"},
		"config":    {func(s *runnerscripts.Session) { s.Agent.Config = []byte(`{"x":1}`) }, runnerscripts.FailInvalidRequest, "agent.config"},
		"home":      {func(s *runnerscripts.Session) { s.Agent.Env = map[string]string{"GEMINI_CLI_HOME": "/x"} }, runnerscripts.FailInvalidRequest, "GEMINI_CLI_HOME"},
		"session":   {func(s *runnerscripts.Session) { s.SessionID = "x" }, runnerscripts.FailInvalidRequest, "UUID"},
		"missing":   {func(s *runnerscripts.Session) { s.Agent.Command = []string{"no-such-program"} }, runnerscripts.FailAgentMissing, "npm install"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), programName)
			tt.change(&s)
			_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s})
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("setup: %v", err)
			}
			_, err = Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("start: %v", err)
			}
		})
	}
}
