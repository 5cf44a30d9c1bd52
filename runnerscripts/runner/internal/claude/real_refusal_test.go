package claude

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestPluginOfAMarketplaceIsInstalledAndRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	market := filepath.Join(t.TempDir(), "market")
	agenttest.WriteFile(t, filepath.Join(market, ".claude-plugin/marketplace.json"),
		`{"name":"ours","owner":{"name":"us"},"plugins":[{"name":"sold","source":"./sold","description":"A plugin"}]}`)
	for _, file := range pluginFiles(t, "sold", agenttest.StdioMCP(t, "x")) {
		agenttest.WriteFile(t, filepath.Join(market, "sold", file.Path), string(file.Data()))
	}
	f.Profile.Plugins = []runnerscripts.Plugin{{Name: "missing", Marketplace: market}}
	_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: f.Profile})
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), `profile.plugins[0]`) || !strings.Contains(err.Error(), `"missing" not found`) {
		t.Errorf("a plugin that is not there: %v", err)
	}
	f.Profile.Plugins[0].Name = "sold"
	f.SetUp()
	f.SetUp() // a second call is allowed
	c := f.Start()
	f.Prompt(c, "/sold:hello you")
	f.sees(f.LastRequest(), "plain-text of a plugin for you", "SKILL-OF-A-PLUGIN")
	f.toolAnswers(c, "call-tool `mcp__plugin_sold_x__nothing`", "No such tool available")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.Profile.Plugins = nil
	f.SetUp()
	f.Session.SessionID = agent.NewUUID() // the old conversation mentions the plugin
	f.Prompt(f.Start(), "plain-text")
	if body := string(f.LastRequest().Body); strings.Contains(body, "SKILL-OF-A-PLUGIN") {
		t.Error("the plugin of the last profile is still there")
	}
}

func TestWhatClaudeWouldPassOverIsRefusedByName(t *testing.T) {
	t.Parallel()
	allow := func(rules ...string) runnerscripts.Profile { return runnerscripts.Profile{AllowedTools: rules} }
	tests := map[string]struct {
		profile runnerscripts.Profile
		code    runnerscripts.FailureCode
		field   string
	}{
		"a key of a command": {
			runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "a", Content: "x", Frontmatter: map[string]any{"effort": "high", "colour": "red"}}}},
			runnerscripts.FailUnsupported, "profile.commands[0].frontmatter.colour:",
		},
		"a key of a subagent": {
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "a", Description: "x", Prompt: "x", Frontmatter: map[string]any{"mode": "x"}}}},
			runnerscripts.FailUnsupported, "profile.subagents[0].frontmatter.mode:",
		},
		"a command and a skill of one name": {
			runnerscripts.Profile{
				Commands: []runnerscripts.SlashCommand{{Name: "a", Content: "x"}}, Skills: []runnerscripts.Skill{{Name: "a", Description: "x", Content: "x"}},
			},
			runnerscripts.FailInvalidRequest, "profile.commands[0]:",
		},
		"an event of no hook": {
			runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "Stop", Command: "true"}, {Event: "BeforeTool", Command: "true"}}},
			runnerscripts.FailInvalidRequest, "profile.hooks[1],",
		},
		"no rule that allows": {allow("Read", "Bash("), runnerscripts.FailInvalidRequest, "profile.allowed_tools[1],"},
		"no rule that denies": {
			runnerscripts.Profile{DeniedTools: []string{"lower case(x)"}}, runnerscripts.FailInvalidRequest, "profile.denied_tools[0],",
		},
		"the name of a subagent": {
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "general-purpose", Description: "x", Prompt: "x", Frontmatter: map[string]any{"disallowedTools": "Bash"}}}},
			"", "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: tt.profile})
			if err == nil {
				var c agent.Conversation
				c, err = Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session, Profile: tt.profile}, f.Out)
				if err == nil {
					t.Cleanup(func() { _ = c.Close() })
				}
			}
			if tt.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.field) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestProfileThatWasNotSetUpIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Profile.Rules = []runnerscripts.Rule{{Name: "a", Content: "x"}}
	_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session, Profile: f.Profile}, f.Out)
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), "setup-session") {
		t.Errorf("error %v", err)
	}
}

func TestServersAndPluginsThatDoNotStartAreToldOnceAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	works := agenttest.StdioMCP(t, "works")
	f.Profile = runnerscripts.Profile{
		AllowedTools: []string{"mcp__works"},
		MCPServers: []runnerscripts.MCPServer{
			{Name: "absent", Command: []string{"/no/such/program"}},
			{Name: "ends", Command: []string{"sh", "-c", "exit 3"}},
			{Name: "closed", URL: "http://127.0.0.1:9/mcp"},
			works.Server,
		},
		Plugins: []runnerscripts.Plugin{{Name: "spoiled", Files: []runnerscripts.WorkspaceFile{{Path: ".claude-plugin/plugin.json", Text: "{"}}}},
	}
	f.SetUp()
	c := f.Start()
	for range 2 {
		f.toolAnswers(c, "call-tool `mcp__works__add {\"a\":2,\"b\":3}`", "the sum is 5")
	}
	logs := f.logs("error")
	for _, name := range []string{`"absent"`, `"ends"`, `"closed"`, "spoiled"} {
		if n := len(slices.DeleteFunc(slices.Clone(logs), func(l string) bool { return !strings.Contains(l, name) })); n != 1 {
			t.Errorf("%s is told of %d times: %q", name, n, logs)
		}
	}
	if len(logs) != 4 {
		t.Errorf("errors: %q", logs)
	}
}

func TestBudgetEndsEachQueryThatHasCostSoMuch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	f.Profile.BudgetUSD = 0.02
	f.SetUp()
	c := f.Start()
	for range 2 { // each query has a budget of its own; how much more it costs depends on when the interrupt arrives
		if done := f.Prompt(c, "endless"); done.StopReason != runnerscripts.StopMaxRequests || done.Usage.CostUSD < 0.02 || done.Usage.CostUSD > 1 {
			t.Errorf("ended with %+v", done)
		}
		if done := f.Prompt(c, "plain-text"); done.StopReason != runnerscripts.StopEndTurn || done.Usage.CostUSD <= 0 {
			t.Errorf("a cheap query ended with %+v", done)
		}
	}
	if logs := f.logs("warn"); len(logs) != 2 || !strings.Contains(logs[0], "its budget is $0.0200") {
		t.Errorf("logs: %q", logs)
	}
}

func TestSystemPromptOfAResumedSessionIsTheNewOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, text := range []string{"Speak like a PIRATE.", "Speak like a POET.", ""} {
		f.Session.Agent.SystemPrompt = text
		c := f.Start()
		f.Prompt(c, "plain-text")
		body := string(f.LastRequest().Body)
		for _, word := range []string{"PIRATE", "POET"} {
			if has := strings.Contains(body, word); has != strings.Contains(text, word) {
				t.Errorf("with the prompt %q the model is sent %s: %v", text, word, has)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileToolsOutsideOfTheWorkspaceAreRefused(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		t.Run(map[bool]string{true: "unless allowed", false: "by default"}[allowed], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.AllowOutside = allowed
			outside := t.TempDir()
			agenttest.WriteFile(t, filepath.Join(outside, "old"), "of somebody\n")
			if err := os.Symlink(outside, f.WorkspaceFile("link")); err != nil {
				t.Fatal(err)
			}
			c := f.Start()
			calls := []string{
				call(t, "Read", map[string]string{"file_path": outside + "/old"}),
				call(t, "Read", map[string]string{"file_path": f.homeFile(".claude/.claude.json")}),
				call(t, "Write", map[string]string{"file_path": f.WorkspaceFile("link/new"), "content": "x"}),
				call(t, "Write", map[string]string{"file_path": "link/../../new", "content": "x"}),
				call(t, "Write", map[string]string{"file_path": "~/new", "content": "x"}),
			}
			if allowed {
				wait := f.PromptAsync(c, calls[0])
				if err := c.Respond(t.Context(), f.Asked().ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
					t.Fatal(err)
				}
				if _, err := wait(); err != nil || !strings.Contains(f.LastRequest().Results[0], "of somebody") {
					t.Errorf("%v, the model was told %q", err, f.LastRequest().Results)
				}
				return
			}
			for _, text := range calls {
				f.toolAnswers(c, text, "outside of the workspace "+f.Session.Paths.Workspace)
			}
			f.nothingAsked()
			for _, name := range []string{outside + "/new", f.homeFile("new"), filepath.Join(f.Session.Paths.Session, "new")} {
				if _, err := os.Stat(name); err == nil {
					t.Errorf("%s is written", name)
				}
			}
			if logs := f.logs("warn"); len(logs) != len(calls) || !strings.Contains(logs[0], "Read "+outside+"/old was not allowed") {
				t.Errorf("logs: %q", logs)
			}
			wait := f.PromptAsync(c, "write-file `inside.txt`") // the program asks for this as before
			if err := c.Respond(t.Context(), f.Asked().ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
				t.Fatal(err)
			}
			if _, err := wait(); err != nil || !f.Exists("inside.txt") {
				t.Errorf("a file inside: %v", err)
			}
			f.SameAsTranscript()
		})
	}
}

// call returns a prompt that makes the model call a tool.
func call(t *testing.T, tool string, input map[string]string) string {
	t.Helper()
	data, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	return "call-tool `" + tool + " " + string(data) + "`"
}
