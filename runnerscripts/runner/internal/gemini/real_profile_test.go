package gemini

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

const secret = "the-$ecret"

// fullProfile sets a profile with content of every kind, and returns its MCP servers.
func (f *fixture) fullProfile() (calc, web, brought *agenttest.MCP) {
	calc, web, brought = agenttest.StdioMCP(f, "calc"), agenttest.HTTPMCP(f, "web"), agenttest.BundledMCP(f, "brought")
	f.Session.Agent.Env["CALC_TOKEN"] = secret
	calc.Server.Env["TOKEN"] = "x ${CALC_TOKEN}"
	web.Server.Headers = map[string]string{"X-Token": "${CALC_TOKEN}"}
	hook := func(name string) string {
		return fmt.Sprintf(`read -r in; echo "$in" >> %s/%s; case $in in *forbidden*) echo "not this" >&2; exit 2;; esac; echo '{}'`,
			f.Session.Paths.Workspace, name)
	}
	f.Session.Agent.SystemPrompt = "Speak like a pirate."
	f.Profile = runnerscripts.Profile{
		Rules:     []runnerscripts.Rule{{Name: "a", Content: "Rule one."}, {Name: "b", Content: "Rule two."}},
		Skills:    []runnerscripts.Skill{{Name: "release", Description: "How to release it.", Content: "Tag, then push."}},
		Commands:  []runnerscripts.SlashCommand{{Name: "greet", Description: "Greets.", Content: "plain-text for $ARGUMENTS"}},
		Subagents: []runnerscripts.Subagent{{Name: "reviewer", Description: "Reviews the code.", Prompt: "You are a reviewer."}},
		Hooks: []runnerscripts.Hook{
			{Event: "UserPromptSubmit", Command: hook("submitted"), TimeoutSeconds: 60},
			{Event: "Stop", Command: hook("stopped")},
			{Event: "SessionEnd", Command: hook("ended")},
		},
		MCPServers: []runnerscripts.MCPServer{
			calc.Server, web.Server, brought.Server, {Name: "broken", Command: []string{"false"}},
		},
		Plugins: []runnerscripts.Plugin{{Name: "extra", Files: []runnerscripts.WorkspaceFile{
			{Path: manifestFile, Text: `{"name":"extra","version":"1.0.0"}`},
			{Path: "GEMINI.md", Text: "Rule of the plugin."},
		}}},
		AllowedTools: []string{"mcp_calc_add", "run_shell_command(touch allowed)"},
		DeniedTools:  []string{"web_fetch", "run_shell_command(touch denied)"},
	}
	return calc, web, brought
}

func TestWholeProfileTakesEffect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calc, web, brought := f.fullProfile()
	f.SetUp()
	all := &allower{Recorder: f.Out, t: t}
	c := f.StartWith(t.Context(), all)
	all.respond = c.Respond

	// A slash command, and the rules and tools in the request to the model.
	f.Prompt(c, "/greet Ada and Bob")
	first := f.LastRequest()
	if first.Texts[len(first.Texts)-1] != "plain-text for Ada and Bob" {
		t.Errorf("the model was sent %q", first.Texts)
	}
	for _, want := range []string{
		"Speak like a pirate.", "Rule one.", "Rule two.", "How to release it.", "Reviews the code.", "Rule of the plugin.",
	} {
		if !strings.Contains(string(first.Body), want) {
			t.Errorf("%q is not in the request", want)
		}
	}
	for _, tool := range []string{"mcp_calc_add", "mcp_web_add", "mcp_brought_add", shellTool} {
		if !slices.Contains(first.Tools, tool) {
			t.Errorf("%s is not on offer", tool)
		}
	}
	if slices.Contains(first.Tools, "web_fetch") {
		t.Error("a denied tool is on offer")
	}
	log := f.Out.Wait(t.Context(), t, func(e runnerscripts.Event) bool {
		return e.Type == runnerscripts.TypeLog && strings.Contains(string(e.Payload), `\"broken\"`)
	})
	if got := agenttest.Payload[runnerscripts.Log](t, log); got.Level != "error" {
		t.Errorf("the server that does not start: %+v", got)
	}

	// Tools of MCP servers, allowed and denied tools, skills and subagents.
	for _, m := range []*agenttest.MCP{calc, web, brought} {
		f.Prompt(c, "call-tool `mcp_"+m.Server.Name+"_add {\"a\":2,\"b\":3}`")
		if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "the sum is 5") || len(m.Calls()) != 1 {
			t.Errorf("%s: the model was sent %q", m.Server.Name, got)
		}
	}
	if got := web.Calls()[0].Header.Get("X-Token"); got != secret {
		t.Errorf("the header is %q", got)
	}
	if !slices.Contains(calc.Env(), "TOKEN=x "+secret) {
		t.Errorf("the server's environment is %q", calc.Env())
	}
	f.Prompt(c, "run-command `touch allowed`")
	f.Prompt(c, "run-command `touch denied`")
	if !f.Exists("allowed") || f.Exists("denied") {
		t.Errorf("the allowed command ran: %v, the denied one: %v", f.Exists("allowed"), f.Exists("denied"))
	}
	f.Prompt(c, "call-tool `activate_skill {\"name\":\"release\"}`")
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Tag, then push.") {
		t.Errorf("the skill: the model was sent %q", got)
	}
	f.Prompt(c, `call-tool `+"`"+`invoke_agent {"agent_name":"reviewer","prompt":"run-command \u0060touch sub\u0060"}`+"`")
	if f.Exists("sub") {
		t.Error("the subagent has run a command that nobody has allowed")
	}
	f.Prompt(c, `call-tool `+"`"+`invoke_agent {"agent_name":"reviewer","prompt":"call-tool \u0060complete_task {\"result\":\"well done\"}\u0060"}`+"`")
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "well done") {
		t.Errorf("the subagent: the model was sent %q", got)
	}
	subs := agenttest.Fold(t, f.Out.All()).Subagents
	if len(subs) != 2 || subs[0].Status != session.SubagentFailed || subs[1].Status != session.SubagentCompleted ||
		subs[1].Type != "reviewer" || subs[1].Output != "well done" || subs[0].AgentID == subs[1].AgentID ||
		len(subs[0].Blocks) < 3 || subs[0].Blocks[2].Tool == nil || subs[0].Blocks[2].Tool.Name != shellTool {
		t.Errorf("the subagents: %s", agenttest.Show(t, subs))
	}
	if !slices.ContainsFunc(f.API.Requests(), func(r llmapi.Request) bool { return strings.Contains(string(r.Body), "You are a reviewer.") }) {
		t.Error("the subagent's prompt reaches no model")
	}
	if want := []string{"add (web MCP Server)", "add (brought MCP Server)", `"release": How to release it.`}; !slices.Equal(all.asked, want) {
		t.Errorf("asked for %q, want %q", all.asked, want)
	}

	// Hooks run, and can stop a prompt.
	before := len(f.API.Requests())
	f.Prompt(c, "forbidden plain-text")
	if n := len(f.API.Requests()); n != before {
		t.Errorf("the forbidden prompt reached the model %d times", n-before)
	}
	f.Prompt(c, "after it plain-text")
	f.SameAsTranscript()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"submitted": "BeforeAgent", "stopped": "AfterAgent", "ended": "SessionEnd"} {
		if data, err := os.ReadFile(f.WorkspaceFile(file)); err != nil || !strings.Contains(string(data), want) {
			t.Errorf("the hook %s got %q, %v", file, data, err)
		}
	}
	f.NoFileHas(secret, 5)
}
