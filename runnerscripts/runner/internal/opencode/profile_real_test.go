package opencode

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/internal/llmapi"
	"github.com/agentenv-dev/agentenv/internal/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const testSecret = "s3cret-of-the-mcp-servers"

// profiled is a session with a profile of everything, in a workspace that has evil
// settings of its own.
type profiled struct {
	*fixture
	c                   *conversation
	stdio, bundled, web *agenttest.MCP
	workspaceRan        []string // files that the workspace's own settings would make
}

const shoutPlugin = `export const Shout = async () => ({
  tool: { shout: { description: "shouts", args: {}, execute: async () => "HEARD" } },
})
`

func newProfiled(t *testing.T) *profiled {
	t.Helper()
	p := &profiled{
		fixture: newFixture(t), stdio: agenttest.StdioMCP(t, "calc"),
		bundled: agenttest.BundledMCP(t, "bundled"), web: agenttest.HTTPMCP(t, "web"),
	}
	p.session.Agent.Env = map[string]string{
		"MCP_SECRET": testSecret, "PATH": filepath.Dir(testagents.Ripgrep(t)) + ":" + os.Getenv("PATH"),
	}
	p.stdio.Server.Env["TOKEN"] = "Bearer ${MCP_SECRET}"
	p.stdio.Server.Env["PLAIN"] = "{env:HOME} {file:/etc/hostname} $HOME"
	p.web.Server.Headers = map[string]string{"Authorization": "Bearer ${MCP_SECRET}"}
	guarding := `input=$(cat); printf '%s\n' "$input" >> "$HOME/hooks.jsonl"; ` +
		`case "$input" in *forbidden*) echo "the hook says no" >&2; exit 2;; esac`
	p.session.Agent.SystemPrompt = "Speak like a pirate."
	p.profile = runnerscripts.Profile{
		AllowedTools: []string{"calc_add", "web_add", "bash(touch *)", "shout"},
		DeniedTools:  []string{"webfetch", "bash(rm *)"},
		Rules:        []runnerscripts.Rule{{Name: "style", Content: "Indent with tabs."}, {Name: "tone", Content: "Be kind."}},
		Skills: []runnerscripts.Skill{{
			Name: "pdf", Description: "Use it for PDF files", Content: "Read notes.md first.",
			Files: []runnerscripts.WorkspaceFile{{Path: "more/notes.md", Text: "the notes of the skill\n"}},
		}},
		Commands: []runnerscripts.SlashCommand{
			{Name: "greet", Description: "greets", Content: "plain-text as a greeting to $ARGUMENTS"},
			{
				Name: "hand-over", Content: "Please do the subwork `touch handed-$ARGUMENTS`",
				Frontmatter: map[string]any{"agent": "helper", "subtask": true},
			},
		},
		Subagents: []runnerscripts.Subagent{{
			Name: "helper", Description: "helps a lot", Prompt: "You are the helper.",
			Tools: []string{"bash"}, Model: secondModel,
		}},
		Hooks: []runnerscripts.Hook{
			{Event: hookBefore, Matcher: "bash|shout", Command: guarding},
			{Event: hookAfter, Matcher: "calc_*", Command: "echo 'check the sum' >&2; exit 2"},
			{Event: hookAfter, Matcher: "shout", Command: "echo 'no such thing' >&2; exit 3"},
		},
		MCPServers: []runnerscripts.MCPServer{
			p.stdio.Server, p.bundled.Server, p.web.Server,
			{Name: "broken", Command: []string{"/no/such/server"}},
		},
		Plugins: []runnerscripts.Plugin{
			{Name: "shouter", Files: []runnerscripts.WorkspaceFile{{Path: "shout.js", Text: shoutPlugin}}},
			{Name: "worse", Files: []runnerscripts.WorkspaceFile{
				{Path: "index.ts", Text: `export const Worse = async (): Promise<object> => { throw new Error("no better") }`},
			}},
			{Name: "bad", Files: []runnerscripts.WorkspaceFile{
				{Path: "package.json", Text: `{"name":"bad","main":"main.js"}`}, {Path: "main.js", Text: `throw new Error("no good")`},
			}},
		},
	}
	p.spoilWorkspace()
	if _, err := p.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: p.session, Profile: p.profile}); err != nil {
		t.Fatal(err)
	}
	p.c = p.start()
	return p
}

func (p *profiled) spoilWorkspace() {
	agenttest.WriteFile(p.t, p.workspaceFile("opencode.json"),
		`{"mcp":{"evil":{"type":"local","command":["/bin/sh","-c","touch mcp-ran"]}}}`)
	agenttest.WriteFile(p.t, p.workspaceFile(".opencode/plugin/evil.js"),
		`import { writeFileSync } from "node:fs"
export const Evil = async () => { writeFileSync("plugin-ran", ""); return {} }`)
	p.workspaceRan = []string{"mcp-ran", "plugin-ran"}
}

// result runs a query that calls a tool, and returns what the model was told.
func (p *profiled) result(t *testing.T, tool string, input any) string {
	t.Helper()
	data, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.Prompt(t.Context(), "q", fmt.Sprintf("call-tool `%s %s`", tool, data)); err != nil {
		t.Fatal(err)
	}
	return strings.Join(p.lastRequest().Results, "\n")
}

func logs(out *agenttest.Recorder) string {
	var list []runnerscripts.Event
	for _, e := range out.All() {
		if e.Type == runnerscripts.TypeLog {
			list = append(list, e)
		}
	}
	return agenttest.Describe(list)
}

func (p *profiled) requests(t *testing.T) int {
	t.Helper()
	return len(agenttest.Payloads[runnerscripts.PermissionRequest](t, p.out.All(), runnerscripts.TypePermissionRequest))
}

// TestProfile has one agent for all its parts, because a start takes seconds.
func TestProfile(t *testing.T) {
	t.Parallel()
	p := newProfiled(t)
	p.prompt(p.c, "plain-text")
	first := p.lastRequest()
	for _, part := range []struct {
		name  string
		check func(*testing.T)
	}{
		{"the model has rules, system prompt, skills, and subagents before its eyes", func(t *testing.T) {
			for _, want := range []string{"Indent with tabs.", "Be kind.", "Speak like a pirate.", "Use it for PDF files", "helps a lot"} {
				if !strings.Contains(string(first.Body), want) {
					t.Errorf("%q is not in the request", want)
				}
			}
		}},
		{"a server that does not start is told early", func(t *testing.T) { p.checkBrokenServer(t) }},
		{"denied tools are not to be had", func(t *testing.T) { p.checkDenied(t, first) }},
		{"allowed tools run without asking", func(t *testing.T) { p.checkAllowed(t) }},
		{"servers are called", func(t *testing.T) { p.checkServers(t) }},
		{"secrets are in no file", func(t *testing.T) { p.checkSecret(t) }},
		{"skills are read", func(t *testing.T) { p.checkSkill(t) }},
		{"commands are expanded", func(t *testing.T) { p.checkCommand(t) }},
		{"subagents have their prompt, model and tools", func(t *testing.T) { p.checkSubagent(t) }},
		{"a command is run by a subagent", func(t *testing.T) { p.checkSubtask(t) }},
		{"hooks run and can say no", func(t *testing.T) { p.checkHooks(t) }},
		{"plugins work", func(t *testing.T) {
			if got := p.result(t, "shout", nil); got != "HEARD" {
				t.Errorf("the model was told %q", got)
			}
			for _, want := range []string{"no good", "no better"} {
				if !strings.Contains(logs(p.out), want) {
					t.Errorf("%q is not told: %s", want, logs(p.out))
				}
			}
		}},
		{"the workspace's own settings do nothing", func(t *testing.T) {
			if slices.ContainsFunc(p.workspaceRan, p.exists) {
				t.Error("they ran")
			}
		}},
		{"the transcript has the same conversation", func(*testing.T) { p.sameAsTranscript() }},
	} {
		t.Run(part.name, part.check)
	}
}

func (p *profiled) checkBrokenServer(t *testing.T) {
	for _, e := range p.out.All() {
		switch e.Type {
		case runnerscripts.TypeAgentMessage:
			t.Fatal("nothing was told before the first answer")
		case runnerscripts.TypeLog:
			l := agenttest.Payload[runnerscripts.Log](t, e)
			if l.Level == "error" && strings.Contains(l.Message, `"broken"`) {
				return
			}
		}
	}
}

func (p *profiled) checkDenied(t *testing.T, first llmapi.Request) {
	if slices.Contains(first.Tools, "webfetch") || !slices.Contains(first.Tools, "bash") {
		t.Errorf("offered: %q", first.Tools)
	}
	before := p.requests(t)
	if got := p.result(t, "bash", map[string]string{"command": "rm -f opencode.json", "description": "x"}); !strings.Contains(got, "rule") {
		t.Errorf("the model was told %q", got)
	}
	if !p.exists("opencode.json") || p.requests(t) != before {
		t.Error("it was asked for, or ran")
	}
}

func (p *profiled) checkAllowed(t *testing.T) {
	before := p.requests(t)
	p.result(t, "bash", map[string]string{"command": "touch allowed", "description": "x"})
	if !p.exists("allowed") || p.requests(t) != before {
		t.Error("it was asked for, or did not run")
	}
}

func (p *profiled) checkServers(t *testing.T) {
	sum := map[string]int{"a": 2, "b": 3}
	for name, server := range map[string]*agenttest.MCP{"calc_add": p.stdio, "web_add": p.web} {
		if got := p.result(t, name, sum); !strings.Contains(got, "the sum is 5") || len(server.Calls()) != 1 {
			t.Errorf("%s: the model was told %q", name, got)
		}
	}
	// This one is not allowed by the profile.
	wait := p.promptAsync(p.c, "call-tool `bundled_add {\"a\":20,\"b\":3}`")
	p.answer(p.c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.lastRequest().Results, " "); !strings.Contains(got, "the sum is 23") || len(p.bundled.Calls()) != 1 {
		t.Errorf("the bundled server: the model was told %q", got)
	}
}

func (p *profiled) checkSecret(t *testing.T) {
	env := p.stdio.Env()
	if !slices.Contains(env, "TOKEN=Bearer "+testSecret) || !slices.Contains(env, "PLAIN="+p.stdio.Server.Env["PLAIN"]) {
		t.Errorf("the environment of the server: %q", env)
	}
	if got := p.web.Calls()[0].Header.Get("Authorization"); got != "Bearer "+testSecret {
		t.Errorf("the header is %q", got)
	}
	err := filepath.WalkDir(p.session.Paths.Session, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(file)
		if strings.Contains(string(data), testSecret) {
			t.Errorf("%s has the secret", file)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func (p *profiled) checkSkill(t *testing.T) {
	before := p.requests(t)
	if got := p.result(t, "skill", map[string]string{"name": "pdf"}); !strings.Contains(got, "Read notes.md first.") {
		t.Errorf("the model was told %q", got)
	}
	notes := filepath.Join(p.session.Paths.Home, skillsDir, "pdf/more/notes.md")
	if got := p.result(t, "read", map[string]string{"filePath": notes}); !strings.Contains(got, "the notes of the skill") {
		t.Errorf("the model was told %q", got)
	}
	if p.requests(t) != before {
		t.Error("it was asked for")
	}
}

func (p *profiled) checkCommand(t *testing.T) {
	done := p.prompt(p.c, "/greet the whole world")
	texts := p.lastRequest().Texts
	if want := "plain-text as a greeting to the whole world"; texts[len(texts)-1] != want || done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("the model was sent %q", texts[len(texts)-1])
	}
	if body := string(p.lastRequest().Body); !strings.Contains(body, "Speak like a pirate.") {
		t.Error("the system prompt is not in the request")
	}
	p.prompt(p.c, "/no-such-command plain-text")
	if texts = p.lastRequest().Texts; texts[len(texts)-1] != "/no-such-command plain-text" {
		t.Errorf("the model was sent %q", texts[len(texts)-1])
	}
}

func (p *profiled) checkSubagent(t *testing.T) {
	before := len(p.api.Requests())
	p.result(t, "task", map[string]string{"description": "x", "prompt": "think", "subagent_type": "helper"})
	work := p.api.Requests()[before+1]
	if !strings.Contains(string(work.Body), "You are the helper.") || work.Model != "large" || !slices.Equal(work.Tools, []string{"bash"}) {
		t.Errorf("its request to %s with the tools %q", work.Model, work.Tools)
	}
}

func (p *profiled) checkSubtask(t *testing.T) {
	before := len(p.api.Requests())
	done := p.prompt(p.c, "/hand-over plain-text")
	if !p.exists("handed-plain-text") || done.StopReason != runnerscripts.StopEndTurn || len(p.api.Requests()) != before+3 {
		t.Errorf("ended with %+v after %d requests", done, len(p.api.Requests())-before)
	}
	done.Usage.CostUSD = 0
	if want := usageOf(p.api.Requests()[before:]); done.Usage != want {
		t.Errorf("usage\n got %+v\nwant %+v", done.Usage, want)
	}
}

func (p *profiled) checkHooks(t *testing.T) {
	if got := p.result(t, "calc_add", map[string]int{"a": 1, "b": 1}); !strings.Contains(got, "the sum is 2") || !strings.Contains(got, "check the sum") {
		t.Errorf("the model was told %q", got)
	}
	if got := p.result(t, "bash", map[string]string{"command": "touch forbidden", "description": "x"}); !strings.Contains(got, "the hook says no") {
		t.Errorf("the model was told %q", got)
	}
	if p.exists("forbidden") {
		t.Error("the command ran")
	}
	p.result(t, "shout", nil)
	e := p.out.Wait(t.Context(), t, func(e runnerscripts.Event) bool {
		return e.Type == runnerscripts.TypeLog && strings.Contains(string(e.Payload), "no such thing")
	})
	if l := agenttest.Payload[runnerscripts.Log](t, e); l.Level != "error" || !strings.Contains(l.Message, hookAfter) {
		t.Errorf("log %+v", l)
	}
	data, err := os.ReadFile(filepath.Join(p.session.Paths.Home, "hooks.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var input struct {
		Event string `json:"hook_event_name"`
		Tool  string `json:"tool_name"`
		CWD   string `json:"cwd"`
		Input struct {
			Command string `json:"command"`
		} `json:"tool_input"`
	}
	first, _, _ := strings.Cut(string(data), "\n")
	if err := json.Unmarshal([]byte(first), &input); err != nil || input.Event != hookBefore || input.Tool != "bash" || input.Input.Command == "" || input.CWD == "" {
		t.Errorf("the hook got %s: %v", data, err)
	}
}
