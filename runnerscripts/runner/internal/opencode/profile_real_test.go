package opencode

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestProfile tests all parts of a profile with one agent. The workspace has settings of its own
// and is not trusted.
func TestProfile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Env = map[string]string{
		"MCP_SECRET": testSecret, "PATH": filepath.Dir(testagents.Ripgrep(t)) + ":" + os.Getenv("PATH"),
	}
	f.Session.Agent.SystemPrompt = "Speak like a pirate."
	p := newServers(t)
	f.Profile = p.profile()
	f.spoilWorkspace()
	f.SetUp()
	f.each(t, f.start(), []step{
		{"a server that does not start is told before the first answer", tellsOfABrokenServer},
		{"the model has rules, skills and the like before its eyes", showsToTheModel},
		{"denied tools are not to be had", denies},
		{"allowed tools run without asking", allows},
		{"servers are called", p.areCalled},
		{"secrets are in no file", p.keepTheirSecret},
		{"skills are read", readsASkill},
		{"commands are expanded", expandsACommand},
		{"subagents have their own prompt, model and tools", hasASubagent},
		{"a command is run by a subagent", handsACommandOver},
		{"hooks run and can say no", runsHooks},
		{"plugins work, and those that do not are told", hasPlugins},
		{"the workspace's own settings do nothing", func(f *fixture, _ *conversation) {
			if slices.ContainsFunc(spoiled(), f.Exists) {
				f.Error("they ran")
			}
		}},
	})
}

const testSecret = "s3cret-of-the-mcp-servers"

// servers holds an MCP server of each kind.
type servers struct{ stdio, bundled, web *agenttest.MCP }

func newServers(t *testing.T) servers {
	p := servers{stdio: agenttest.StdioMCP(t, "calc"), bundled: agenttest.BundledMCP(t, "bundled"), web: agenttest.HTTPMCP(t, "web")}
	p.stdio.Server.Env["TOKEN"] = "Bearer ${MCP_SECRET}"
	p.stdio.Server.Env["PLAIN"] = "{env:HOME} {file:/etc/hostname} $HOME"
	p.web.Server.Headers = map[string]string{"Authorization": "Bearer ${MCP_SECRET}"}
	return p
}

// profile returns a profile with everything that the program supports.
func (p servers) profile() runnerscripts.Profile {
	return runnerscripts.Profile{
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
			Name: "helper", Description: "helps a lot", Prompt: "You are the helper.", Tools: []string{"bash"}, Model: secondModel,
		}},
		Hooks: []runnerscripts.Hook{
			{Event: hookBefore, Matcher: "bash|shout", Command: `input=$(cat); printf '%s\n' "$input" >> "$HOME/hooks.jsonl"; ` +
				`case "$input" in *forbidden*) echo "the hook says no" >&2; exit 2;; esac`},
			{Event: hookAfter, Matcher: "calc_*", Command: "echo 'check the sum' >&2; exit 2"},
			{Event: hookAfter, Matcher: "shout", Command: "echo 'no such thing' >&2; exit 3"},
			{Event: hookAfter, Matcher: "skill", Command: "sleep 600", TimeoutSeconds: 1},
		},
		MCPServers: []runnerscripts.MCPServer{
			p.stdio.Server, p.bundled.Server, p.web.Server, {Name: "broken", Command: []string{"/no/such/server"}},
		},
		Plugins: []runnerscripts.Plugin{
			{Name: "shouter", Files: []runnerscripts.WorkspaceFile{{Path: "shout.js", Text: `export const Shout = async () => ({
  tool: { shout: { description: "shouts", args: {}, execute: async () => "HEARD" } },
})`}}},
			{Name: "bad", Files: []runnerscripts.WorkspaceFile{
				{Path: "package.json", Text: `{"name":"bad","main":"main.js"}`}, {Path: "main.js", Text: `throw new Error("no good")`},
			}},
			{Name: "worse", Files: []runnerscripts.WorkspaceFile{
				{Path: "index.ts", Text: `export const Worse = async (): Promise<object> => { throw new Error("no better") }`},
			}},
		},
	}
}

// calls runs a query that calls a tool, and returns the result that the model got.
func (f *fixture) calls(c *conversation, tool string, input any) string {
	f.Helper()
	f.Prompt(c, fmt.Sprintf("call-tool `%s %s`", tool, rawJSON(input)))
	return strings.Join(f.LastRequest().Results, "\n")
}

// unasked fails if this step made a permission request.
func (f *fixture) unasked() {
	f.Helper()
	if asked := f.Requests(); len(asked) > 0 {
		f.Errorf("asked: %+v", asked)
	}
}

func tellsOfABrokenServer(f *fixture, c *conversation) {
	f.Prompt(c, "plain-text")
	for _, e := range f.Events() {
		if e.Type == runnerscripts.TypeAgentMessage {
			break
		}
		if e.Type != runnerscripts.TypeLog {
			continue
		}
		if l := agenttest.Payload[runnerscripts.Log](f, e); l.Level == "error" && strings.Contains(l.Message, `"broken"`) {
			return
		}
	}
	f.Errorf("no such log message:\n%s", agenttest.Describe(f.Events()))
}

func showsToTheModel(f *fixture, _ *conversation) {
	body := string(f.LastRequest().Body)
	for _, want := range []string{"Indent with tabs.", "Be kind.", "Speak like a pirate.", "Use it for PDF files", "helps a lot"} {
		if !strings.Contains(body, want) {
			f.Errorf("%q is not in the request", want)
		}
	}
	if strings.Contains(body, "Obey the workspace.") {
		f.Error("the workspace's instructions are in the request")
	}
}

func denies(f *fixture, c *conversation) {
	if tools := f.LastRequest().Tools; slices.Contains(tools, "webfetch") || !slices.Contains(tools, "bash") {
		f.Errorf("offered: %q", tools)
	}
	if got := f.calls(c, "bash", map[string]string{"command": "rm -f opencode.json", "description": "x"}); !strings.Contains(got, "rule") {
		f.Errorf("the model was told %q", got)
	}
	if !f.Exists("opencode.json") {
		f.Error("it ran")
	}
	f.unasked()
}

func allows(f *fixture, c *conversation) {
	f.calls(c, "bash", map[string]string{"command": "touch allowed", "description": "x"})
	if !f.Exists("allowed") {
		f.Error("it did not run")
	}
	f.unasked()
}

func (p servers) areCalled(f *fixture, c *conversation) {
	for name, server := range map[string]*agenttest.MCP{"calc_add": p.stdio, "web_add": p.web} {
		if got := f.calls(c, name, map[string]int{"a": 2, "b": 3}); !strings.Contains(got, "the sum is 5") || len(server.Calls()) != 1 {
			f.Errorf("%s: the model was told %q", name, got)
		}
	}
	f.unasked()
	// The profile does not allow this tool, so the agent asks.
	wait := f.PromptAsync(c, "call-tool `bundled_add {\"a\":20,\"b\":3}`")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	if got := strings.Join(f.LastRequest().Results, " "); !strings.Contains(got, "the sum is 23") || len(p.bundled.Calls()) != 1 {
		f.Errorf("the bundled server: the model was told %q", got)
	}
}

func (p servers) keepTheirSecret(f *fixture, _ *conversation) {
	env := p.stdio.Env()
	if !slices.Contains(env, "TOKEN=Bearer "+testSecret) || !slices.Contains(env, "PLAIN="+p.stdio.Server.Env["PLAIN"]) {
		f.Errorf("the environment of the server: %q", env)
	}
	if got := p.web.Calls()[0].Header.Get("Authorization"); got != "Bearer "+testSecret {
		f.Errorf("the header is %q", got)
	}
	f.NoFileHas(testSecret, 10)
}

// readsASkill also checks that a hook ends at its timeout.
func readsASkill(f *fixture, c *conversation) {
	if got := f.calls(c, "skill", map[string]string{"name": "pdf"}); !strings.Contains(got, "Read notes.md first.") {
		f.Errorf("the model was told %q", got)
	}
	notes := filepath.Join(f.Session.Paths.Home, skillsDir, "pdf/more/notes.md")
	if got := f.calls(c, "read", map[string]string{"filePath": notes}); !strings.Contains(got, "the notes of the skill") {
		f.Errorf("the model was told %q", got)
	}
	f.unasked()
	f.wait(isLog("longer than 1 s"))
}

// isLog matches a reported error.
func isLog(text string) func(runnerscripts.Event) bool {
	return func(e runnerscripts.Event) bool {
		return e.Type == runnerscripts.TypeLog && strings.Contains(string(e.Payload), text) && strings.Contains(string(e.Payload), `"level":"error"`)
	}
}

func expandsACommand(f *fixture, c *conversation) {
	last := func() string { texts := f.LastRequest().Texts; return texts[len(texts)-1] }
	done := f.Prompt(c, "/greet the whole world")
	if last() != "plain-text as a greeting to the whole world" || done.StopReason != runnerscripts.StopEndTurn {
		f.Errorf("the model was sent %q, and it ended with %q", last(), done.StopReason)
	}
	if !strings.Contains(string(f.LastRequest().Body), "Speak like a pirate.") {
		f.Error("the system prompt is not in the request")
	}
	f.Prompt(c, "/no-such-command plain-text")
	if last() != "/no-such-command plain-text" {
		f.Errorf("the model was sent %q", last())
	}
}

func hasASubagent(f *fixture, c *conversation) {
	before := len(f.API.Requests())
	f.calls(c, "task", map[string]string{"description": "x", "prompt": "think", "subagent_type": "helper"})
	work := f.API.Requests()[before+1]
	if !strings.Contains(string(work.Body), "You are the helper.") || work.Model != "large" || !slices.Equal(work.Tools, []string{"bash"}) {
		f.Errorf("its request to %s with the tools %q", work.Model, work.Tools)
	}
}

// handsACommandOver checks a command that a subagent runs. The program continues with a message
// that it creates itself, which belongs to the query.
func handsACommandOver(f *fixture, c *conversation) {
	before := len(f.API.Requests())
	done := f.Prompt(c, "/hand-over plain-text")
	if !f.Exists("handed-plain-text") || done.StopReason != runnerscripts.StopEndTurn || len(f.API.Requests()) != before+3 {
		f.Errorf("ended with %+v after %d requests", done, len(f.API.Requests())-before)
	}
	done.Usage.CostUSD = 0
	if want := f.UsageAfter(before); done.Usage != want {
		f.Errorf("usage\n got %+v\nwant %+v", done.Usage, want)
	}
	if subs := agenttest.Fold(f, f.Events()).Subagents; len(subs) != 1 || subs[0].Type != "helper" {
		f.Errorf("subagents: %s", agenttest.Show(f, subs))
	}
}

func runsHooks(f *fixture, c *conversation) {
	if got := f.calls(c, "calc_add", map[string]int{"a": 1, "b": 1}); !strings.Contains(got, "the sum is 2") || !strings.Contains(got, "check the sum") {
		f.Errorf("the model was told %q", got)
	}
	if got := f.calls(c, "bash", map[string]string{"command": "touch forbidden", "description": "x"}); !strings.Contains(got, "the hook says no") {
		f.Errorf("the model was told %q", got)
	}
	if f.Exists("forbidden") {
		f.Error("the command ran")
	}
	data, err := os.ReadFile(filepath.Join(f.Session.Paths.Home, "hooks.jsonl"))
	if err != nil {
		f.Fatal(err)
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
		f.Errorf("the hook got %s: %v", first, err)
	}
}

func hasPlugins(f *fixture, c *conversation) {
	if got := f.calls(c, "shout", map[string]int{}); got != "HEARD" {
		f.Errorf("the model was told %q", got)
	}
	f.wait(isLog("no such thing"))               // from the hook that fails after the call
	f.Out.Wait(f.Context(), f, isLog("no good")) // from the start
	f.Out.Wait(f.Context(), f, isLog("no better"))
}
