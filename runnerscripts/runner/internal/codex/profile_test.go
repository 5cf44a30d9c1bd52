package codex

import (
	"encoding/json"
	"io/fs"
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
	for _, r := range f.api.Requests()[n:] {
		list = append(list, string(r.Body))
	}
	return list
}

func contains(list []string, text string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, text) })
}

// readWorkspace returns the content of a file in the workspace, or "" if there is none.
func (f *fixture) readWorkspace(name string) string {
	f.t.Helper()
	data, err := agent.ReadIfExists(f.workspaceFile(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

// One program tests the whole profile, because each start takes time.
func TestProfileIsInForce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.profile = runnerscripts.Profile{
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
	f.session.Agent.PermissionMode = "full-access"
	c := f.start()

	f.prompt(c, "/greet big world ")
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
	f.prompt(c, "run-command `sh "+f.session.Paths.Home+"/.codex/skills/tea/scripts/brew.sh`")
	if got := f.lastRequest().Results; !contains(got, "tea is ready") {
		t.Errorf("the skill's script: %q", got)
	}
	f.prompt(c, "run-command `echo secret-plan > plan`")
	if got := f.lastRequest().Results; f.exists("plan") || !contains(got, "not that one") {
		t.Errorf("the blocked tool: %q", got)
	}
	agenttest.WriteFile(t, f.workspaceFile("unfinished"), "")
	f.prompt(c, "plain-text")
	if body := string(f.lastRequest().Body); !strings.Contains(body, "please remember it") {
		t.Error("what the hook said at the end does not reach the model")
	}
	f.profileSubagent(c)
	offered := agenttest.Payload[map[string]any](t, f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeCommands)))
	if got := string(jsonOf(offered)); got != `{"availableCommands":[{"description":"Greets somebody","input":{"hint":"NAME"},"name":"greet"}]}` {
		t.Errorf("commands: %s", got)
	}
	f.sameAsTranscript()
	f.withoutProfile()
}

// profileSubagent runs the subagent of the profile.
func (f *fixture) profileSubagent(c agent.Conversation) {
	f.t.Helper()
	n := len(f.api.Requests())
	f.prompt(c, "call-tool `tool_search {\"query\":\"spawn agent\"}`")
	if !contains(f.bodies(n), "Reviews with care") {
		f.t.Error("the subagent is not offered")
	}
	n = len(f.api.Requests())
	f.prompt(c, "call-tool `"+codexSpawn+` {"message":"think","agent_type":"reviewer"}`+"`")
	at := slices.IndexFunc(f.api.Requests(), func(r llmapi.Request) bool {
		return strings.Contains(string(r.Body), `You are a \"reviewer\".\n\tBe kind.`)
	})
	if at < n || !strings.Contains(string(f.api.Requests()[at].Body), `"effort":"low"`) {
		f.t.Errorf("the subagent is not asked as the profile says: request %d of %d", at, len(f.api.Requests()))
	}
	subs := agenttest.Fold(f.t, f.out.All()).Subagents
	if len(subs) != 1 || subs[0].Status != session.SubagentCompleted || subs[0].Output != "I have thought about it." {
		f.t.Errorf("subagents: %s", agenttest.Show(f.t, subs))
	}
}

const codexSpawn = "multi_agent_v1/spawn_agent"

// withoutProfile sets the session up without its profile, and checks that no file of it remains.
func (f *fixture) withoutProfile() {
	f.t.Helper()
	if _, err := (Driver{}).Setup(f.t.Context(), runnerscripts.SetupRequest{Session: f.session}); err != nil {
		f.t.Fatal(err)
	}
	for _, name := range []string{rulesFile, hooksFile, policyFile, skillsFolder + "/tea/SKILL.md", agentsFolder + "/reviewer.toml"} {
		if _, err := os.Stat(filepath.Join(f.session.Paths.Home, name)); !os.IsNotExist(err) {
			f.t.Errorf("%s is still there: %v", name, err)
		}
	}
}

const theSecret = "correct-horse-battery"

func TestMCPServersOfTheProfileAreCalled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.Env["TOKEN"] = theSecret
	stdio, bundled, web := agenttest.StdioMCP(t, "calc"), agenttest.BundledMCP(t, "bundled"), agenttest.HTTPMCP(t, "web")
	// The server starts slowly. The first prompt must have its tools nevertheless.
	stdio.Server.Command = []string{"/bin/sh", "-c", "sleep 2; exec " + stdio.Server.Command[0]}
	stdio.Server.Env["TOKEN"], stdio.Server.Env["PLAIN"] = "${TOKEN}", "it's plain"
	bundled.Server.Env["KEY"] = "it's \"${TOKEN}\"$PATH"
	web.Server.Headers = map[string]string{
		"X-Key": "${TOKEN}", "X-Plain": "plain", "Authorization": "Bearer ${TOKEN}", "X-Both": "${TOKEN}+${TOKEN}",
	}
	f.profile.MCPServers = []runnerscripts.MCPServer{stdio.Server, bundled.Server, web.Server}
	f.profile.AllowedTools = []string{"mcp__calc", "mcp__bundled__add", "mcp__web"}
	c := f.start()
	f.prompt(c, "call-tool `tool_search {\"query\":\"adds numbers\"}`")
	for name, server := range map[string]*agenttest.MCP{"calc": stdio, "bundled": bundled, "web": web} {
		if !contains(f.bodies(0), `"mcp__`+name+`"`) {
			t.Errorf("%s: its tool is not offered", name)
		}
		f.prompt(c, "call-tool `mcp__"+name+`/add {"a":2,"b":3}`+"`")
		if got := f.lastRequest().Results; len(server.Calls()) != 1 || !contains(got, "the sum is 5") {
			t.Errorf("%s: %d calls, the model was told %q", name, len(server.Calls()), got)
		}
	}
	if n := len(agenttest.Payloads[runnerscripts.PermissionRequest](t, f.out.All(), runnerscripts.TypePermissionRequest)); n != 0 {
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
	f.noFileHas(theSecret)
	f.sameAsTranscript()
}

// noFileHas fails if a file of the session contains text.
func (f *fixture) noFileHas(text string) {
	f.t.Helper()
	for _, dir := range f.session.Paths.All() {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if err == nil && strings.Contains(string(data), text) {
				f.t.Errorf("%s has the secret", name)
			}
			return err
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

func TestDeniedToolsAreNotAvailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = "full-access" // this mode never asks
	calc := agenttest.StdioMCP(t, "calc")
	off := agenttest.StdioMCP(t, "off")
	f.profile = runnerscripts.Profile{
		MCPServers: []runnerscripts.MCPServer{calc.Server, off.Server},
		DeniedTools: []string{
			toolPatch, toolSearch, toolImage, toolAsk, toolAgents, "mcp__calc__add", "mcp__off", "Bash(touch *)", "exec_command(git push:*)",
		},
	}
	c := f.start()
	f.prompt(c, "write-file `notes.txt`")
	if got := f.lastRequest().Results; f.exists("notes.txt") || !contains(got, "this tool is denied") {
		t.Errorf("the file was written, or the model not told: %q", got)
	}
	f.prompt(c, "run-command `cd . && touch touched`")
	if got := f.lastRequest().Results; f.exists("touched") || !contains(got, "policy forbids") {
		t.Errorf("the command has run, or the model not told: %q", got)
	}
	f.prompt(c, "run-command `echo other > other`")
	if !f.exists("other") {
		t.Error("another command has not run")
	}
	f.prompt(c, callAdd)
	if len(calc.Calls()) != 0 || len(off.Requests()) != 0 {
		t.Errorf("calls: %v, %v", calc.Calls(), off.Requests())
	}
	for _, tool := range []string{toolSearch, toolImage, toolAsk, codexSpawn} {
		if slices.Contains(f.lastRequest().Tools, tool) {
			t.Errorf("%s is offered", tool)
		}
	}
	f.sameAsTranscript()
}

func TestAllowedToolsDoNotAsk(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string][]string{
		"by the words of a command": {"Bash(mkdir *)", "exec_command(mkdir:*)", toolPatch}, "all of them": {toolBash, toolPatch, toolSearch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.profile = runnerscripts.Profile{AllowedTools: allowed, DeniedTools: []string{"Bash(rm *)"}}
			c := f.start()
			for _, prompt := range []string{"write-file `notes.txt`", "run-command `mkdir made && mkdir made/more`", "run-command `rm notes.txt`"} {
				if n := f.promptAndAnswer(c, prompt, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); n != 0 {
					t.Errorf("%s: asked %d times", prompt, n)
				}
			}
			if !f.exists("notes.txt") || !f.exists("made/more") {
				t.Errorf("the file was not written, or was removed, or the command has not run")
			}
			f.sameAsTranscript()
		})
	}
}

func TestDeniedCommandsAreNotOffered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.profile.DeniedTools = []string{toolCommand}
	f.prompt(f.start(), "plain-text")
	if got := f.lastRequest().Tools; len(got) == 0 || slices.Contains(got, toolCommand) || slices.Contains(got, "write_stdin") {
		t.Errorf("offered: %v", got)
	}
}

func TestWorkspacesHooksRunOnlyIfItIsTrusted(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(map[bool]string{true: "trusted", false: "untrusted"}[trusted], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.session.Agent.TrustWorkspace = trusted
			evil, err := json.Marshal(map[string]any{"hooks": map[string]any{"Stop": []any{
				map[string]any{"hooks": []any{map[string]string{"type": "command", "command": "touch workspace-hook-ran"}}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			agenttest.WriteFile(t, f.workspaceFile(".codex/hooks.json"), string(evil))
			agenttest.WriteFile(t, f.workspaceFile(".codex/config.toml"), "[mcp_servers.evil]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"touch mcp-ran\"]\n")
			f.profile.Hooks = []runnerscripts.Hook{{Event: "Stop", Command: "touch profile-hook-ran"}}
			f.prompt(f.start(), "plain-text")
			if trusted {
				f.waitForFile("mcp-ran") // the program waits only for the profile's servers
			}
			for name, want := range map[string]bool{"profile-hook-ran": true, "workspace-hook-ran": trusted, "mcp-ran": trusted} {
				if f.exists(name) != want {
					t.Errorf("%s: %v", name, !want)
				}
			}
		})
	}
}
