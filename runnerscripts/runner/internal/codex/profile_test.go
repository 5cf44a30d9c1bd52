package codex

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/session"
)

// bodies returns the bodies of the requests to the model after the first n.
func (f *fixture) bodies(n int) []string {
	var list []string
	for _, r := range f.API.Requests()[n:] {
		list = append(list, string(r.Body))
	}
	return list
}

func contains(list []string, text string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, text) })
}

// readWorkspace returns the content of a file in the workspace, or "" if there is none.
func (f *fixture) readWorkspace(name string) string {
	f.Helper()
	data, err := agent.ReadIfExists(f.WorkspaceFile(name))
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// One program tests the whole profile, because each start takes time.
func TestProfileIsInForce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Profile = runnerscripts.Profile{
		Rules: []runnerscripts.Rule{
			{Name: "cow", Content: "Always say \"moo\"."}, {Name: "long", Content: strings.Repeat("word ", 10_000) + "the end of rules"},
		},
		Skills: []runnerscripts.Skill{{
			Name: "tea", Description: "Brews <tea> & more: «thé»", Content: "Boil water.",
			Frontmatter: map[string]any{"license": "MIT"},
			Files:       []runnerscripts.WorkspaceFile{{Path: "scripts/brew.sh", Text: "#!/bin/sh\necho tea is ready\n", Mode: 0o755}},
		}},
		Commands: []runnerscripts.SlashCommand{{
			Name: "greet", Description: "Greets somebody", Content: "please run-command `echo hello $ARGUMENTS > greeting`",
			Frontmatter: map[string]any{keyHint: "NAME"},
		}},
		Subagents: []runnerscripts.Subagent{{
			Name: "reviewer", Description: "Reviews with care", Prompt: "You are a \"reviewer\".\n\tBe kind.",
			Model: testModel, Frontmatter: map[string]any{keyEffort: "low"},
		}},
		Hooks: []runnerscripts.Hook{
			{Event: "SessionStart", Command: "echo the session has started"},
			{Event: "PreToolUse", Matcher: "Bash", Command: "cat > hook-input; if grep -q secret-plan hook-input; then echo not that one >&2; exit 2; fi", TimeoutSeconds: 60},
			{Event: "Stop", Command: "if test -e unfinished; then rm unfinished; echo please remember it >&2; exit 2; fi"},
		},
	}
	f.Session.Agent.PermissionMode = "full-access"
	c := f.start()

	f.Prompt(c, "/greet big world ")
	if got := f.readWorkspace("greeting"); got != "hello big world\n" {
		t.Errorf("the command made %q", got)
	}
	first := f.bodies(0)[:1]
	for _, want := range []string{
		`Always say \"moo\".`, "the end of rules", "tea: Brews ", "thé", "the session has started",
	} {
		if !contains(first, want) {
			t.Errorf("the model does not see %q", want)
		}
	}
	if got := f.readWorkspace("hook-input"); !strings.Contains(got, `"tool_name":"Bash"`) {
		t.Errorf("the hook got %q", got)
	}
	f.Prompt(c, "run-command `sh "+f.Session.Paths.Home+"/.codex/skills/tea/scripts/brew.sh`")
	if got := f.LastRequest().Results; !contains(got, "tea is ready") {
		t.Errorf("the skill's script: %q", got)
	}
	f.Prompt(c, "run-command `echo secret-plan > plan`")
	if got := f.LastRequest().Results; f.Exists("plan") || !contains(got, "not that one") {
		t.Errorf("the blocked tool: %q", got)
	}
	agenttest.WriteFile(t, f.WorkspaceFile("unfinished"), "")
	f.Prompt(c, "plain-text")
	if body := string(f.LastRequest().Body); !strings.Contains(body, "please remember it") {
		t.Error("what the hook said at the end does not reach the model")
	}
	f.profileSubagent(c)
	offered := agenttest.Payload[map[string]any](t, f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeCommands)))
	if got := string(jsonOf(offered)); got != `{"availableCommands":[{"description":"Greets somebody","input":{"hint":"NAME"},"name":"greet"}]}` {
		t.Errorf("commands: %s", got)
	}
	f.SameAsTranscript()
	f.withoutProfile()
}

// profileSubagent runs the subagent of the profile.
func (f *fixture) profileSubagent(c agent.Conversation) {
	f.Helper()
	n := len(f.API.Requests())
	f.Prompt(c, "call-tool `tool_search {\"query\":\"spawn agent\"}`")
	if !contains(f.bodies(n), "Reviews with care") {
		f.Error("the subagent is not offered")
	}
	n = len(f.API.Requests())
	f.Prompt(c, "call-tool `"+codexSpawn+` {"message":"think","agent_type":"reviewer"}`+"`")
	at := slices.IndexFunc(f.API.Requests(), func(r llmapi.Request) bool {
		return strings.Contains(string(r.Body), `You are a \"reviewer\".\n\tBe kind.`)
	})
	if at < n || !strings.Contains(string(f.API.Requests()[at].Body), `"effort":"low"`) {
		f.Errorf("the subagent is not asked as the profile says: request %d of %d", at, len(f.API.Requests()))
	}
	subs := agenttest.Fold(f, f.Out.All()).Subagents
	if len(subs) != 1 || subs[0].Status != session.SubagentCompleted || subs[0].Output != "I have thought about it." {
		f.Errorf("subagents: %s", agenttest.Show(f, subs))
	}
}

const codexSpawn = "multi_agent_v1/spawn_agent"

// withoutProfile sets the session up without its profile, and checks that no file of it remains.
func (f *fixture) withoutProfile() {
	f.Helper()
	if _, err := (Driver{}).Setup(f.Context(), runnerscripts.SetupRequest{Session: f.Session}); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{rulesFile, hooksFile, policyFile, skillsFolder + "/tea/SKILL.md", agentsFolder + "/reviewer.toml"} {
		if _, err := os.Stat(filepath.Join(f.Session.Paths.Home, name)); !os.IsNotExist(err) {
			f.Errorf("%s is still there: %v", name, err)
		}
	}
}

const theSecret = "correct-horse-battery"

func TestMCPServersOfTheProfileAreCalled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Env["TOKEN"] = theSecret
	stdio, bundled, web := agenttest.StdioMCP(t, "calc"), agenttest.BundledMCP(t, "bundled"), agenttest.HTTPMCP(t, "web")
	// The server starts slowly. The first prompt must have its tools nevertheless.
	stdio.Server.Command = []string{"/bin/sh", "-c", "sleep 2; exec " + stdio.Server.Command[0]}
	stdio.Server.Env["TOKEN"], stdio.Server.Env["PLAIN"] = "${TOKEN}", "it's plain"
	bundled.Server.Env["KEY"] = "it's \"${TOKEN}\"$PATH"
	web.Server.Headers = map[string]string{
		"X-Key": "${TOKEN}", "X-Plain": "plain", "Authorization": "Bearer ${TOKEN}", "X-Both": "${TOKEN}+${TOKEN}",
	}
	f.Profile.MCPServers = []runnerscripts.MCPServer{stdio.Server, bundled.Server, web.Server}
	f.Profile.AllowedTools = []string{"mcp__calc", "mcp__bundled__add", "mcp__web"}
	c := f.start()
	f.Prompt(c, "call-tool `tool_search {\"query\":\"adds numbers\"}`")
	for name, server := range map[string]*agenttest.MCP{"calc": stdio, "bundled": bundled, "web": web} {
		if !contains(f.bodies(0), `"mcp__`+name+`"`) {
			t.Errorf("%s: its tool is not offered", name)
		}
		f.Prompt(c, "call-tool `mcp__"+name+`/add {"a":2,"b":3}`+"`")
		if got := f.LastRequest().Results; len(server.Calls()) != 1 || !contains(got, "the sum is 5") {
			t.Errorf("%s: %d calls, the model was told %q", name, len(server.Calls()), got)
		}
	}
	if n := len(f.Requests()); n != 0 {
		t.Errorf("asked %d times", n)
	}
	for _, kv := range []string{"TOKEN=" + theSecret, "PLAIN=it's plain"} {
		if !slices.Contains(stdio.Env(), kv) {
			t.Errorf("%s is not in %q", kv, stdio.Env())
		}
	}
	if kv := `KEY=it's "` + theSecret + `"$PATH`; !slices.Contains(bundled.Env(), kv) {
		t.Errorf("%s is not in %q", kv, bundled.Env())
	}
	header := web.Calls()[0].Header
	for name, want := range map[string]string{
		"X-Key": theSecret, "X-Plain": "plain", "Authorization": "Bearer " + theSecret, "X-Both": theSecret + "+" + theSecret,
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f.NoFileHas(theSecret, 5)
	f.SameAsTranscript()
}

func TestDeniedToolsAreNotAvailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access" // this mode never asks
	calc := agenttest.StdioMCP(t, "calc")
	off := agenttest.StdioMCP(t, "off")
	f.Profile = runnerscripts.Profile{
		MCPServers: []runnerscripts.MCPServer{calc.Server, off.Server},
		DeniedTools: []string{
			toolPatch, toolSearch, toolImage, toolAsk, toolAgents, "mcp__calc__add", "mcp__off", "Bash(touch *)", "exec_command(git push:*)",
		},
	}
	c := f.start()
	f.Prompt(c, "write-file `notes.txt`")
	if got := f.LastRequest().Results; f.Exists("notes.txt") || !contains(got, "this tool is denied") {
		t.Errorf("the file was written, or the model not told: %q", got)
	}
	f.Prompt(c, "run-command `cd . && touch touched`")
	if got := f.LastRequest().Results; f.Exists("touched") || !contains(got, "policy forbids") {
		t.Errorf("the command has run, or the model not told: %q", got)
	}
	f.Prompt(c, "run-command `echo other > other`")
	if !f.Exists("other") {
		t.Error("another command has not run")
	}
	f.Prompt(c, callAdd)
	if len(calc.Calls()) != 0 || len(off.Requests()) != 0 {
		t.Errorf("calls: %v, %v", calc.Calls(), off.Requests())
	}
	for _, tool := range []string{toolSearch, toolImage, toolAsk, codexSpawn} {
		if slices.Contains(f.LastRequest().Tools, tool) {
			t.Errorf("%s is offered", tool)
		}
	}
	f.SameAsTranscript()
}

func TestAllowedToolsDoNotAsk(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string][]string{
		"by the words of a command": {"Bash(mkdir *)", "exec_command(mkdir:*)", toolPatch}, "all of them": {toolBash, toolPatch, toolSearch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Profile = runnerscripts.Profile{AllowedTools: allowed, DeniedTools: []string{"Bash(rm *)"}}
			c := f.start()
			for _, prompt := range []string{"write-file `notes.txt`", "run-command `mkdir made && mkdir made/more`", "run-command `rm notes.txt`"} {
				if n := f.promptAndAnswer(c, prompt, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); n != 0 {
					t.Errorf("%s: asked %d times", prompt, n)
				}
			}
			if !f.Exists("notes.txt") || !f.Exists("made/more") {
				t.Errorf("the file was not written, or was removed, or the command has not run")
			}
			f.SameAsTranscript()
		})
	}
}

func TestDeniedCommandsAreNotOffered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Profile.DeniedTools = []string{toolCommand}
	f.Prompt(f.start(), "plain-text")
	if got := f.LastRequest().Tools; len(got) == 0 || slices.Contains(got, toolCommand) || slices.Contains(got, "write_stdin") {
		t.Errorf("offered: %v", got)
	}
}

func TestWorkspacesHooksRunOnlyIfItIsTrusted(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(map[bool]string{true: "trusted", false: "untrusted"}[trusted], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.TrustWorkspace = trusted
			evil, err := json.Marshal(map[string]any{"hooks": map[string]any{"Stop": []any{
				map[string]any{"hooks": []any{map[string]string{"type": "command", "command": "touch workspace-hook-ran"}}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			agenttest.WriteFile(t, f.WorkspaceFile(".codex/hooks.json"), string(evil))
			agenttest.WriteFile(t, f.WorkspaceFile(".codex/config.toml"), "[mcp_servers.evil]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"touch mcp-ran\"]\n")
			f.Profile.Hooks = []runnerscripts.Hook{{Event: "Stop", Command: "touch profile-hook-ran"}}
			f.Prompt(f.start(), "plain-text")
			if trusted {
				f.waitForFile("mcp-ran") // the program waits only for the profile's servers
			}
			for name, want := range map[string]bool{"profile-hook-ran": true, "workspace-hook-ran": trusted, "mcp-ran": trusted} {
				if f.Exists(name) != want {
					t.Errorf("%s: %v", name, !want)
				}
			}
		})
	}
}
