package drivertest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/claude"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/codex"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/gemini"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/opencode"
)

// subject is a driver under test, with what the suite must know about its agent. The driver's
// recipe lists the features of the agent.
type subject struct {
	name   string // the name of the agent in requests
	driver agent.Driver
	find   func(testing.TB) string // returns the path of the pinned program
	args   []string                // the program's first arguments
	// model makes an agent use the scripted model at a URL.
	model func(t testing.TB, s *runnerscripts.Session, url string)
	// mode is the mode in which a session starts. silent is a mode in which the agent does not ask
	// about file changes.
	mode, silent string
	// silentText is text that the model gets in that mode. It is set if the agent asks even in that
	// mode.
	silentText string
	// other is another model, as SetModel takes it. otherSent is its name in requests to the API.
	other, otherSent string
	// forgets means that the transcript lacks interrupted tool calls, and the input of rejected ones.
	forgets bool
	// rewrites means that a decision may replace the input of a command.
	rewrites bool
	// hidesContext means that the agent does not tell how full its context is.
	hidesContext bool
	// hidesAPI means that the agent reports neither retries of requests to the model's API nor their
	// status.
	hidesAPI bool
	// subagents means that the agent has subagents that report their work.
	subagents bool
	// imports means that Setup imports a transcript with the program, which may write it in another
	// form.
	imports bool
	// terse means that the agent reports neither the content of a new file, nor that a command failed,
	// nor the usage of any request but the last one.
	terse bool
	// pin is the package in e2e/agents that holds the program. packed is the path of a program in
	// the npm package npm. All three are empty if the driver installs no package.
	pin, npm, packed string

	// tool is the model's name of the tool "add" of an MCP server, as a format.
	tool string
	// allow is the entry of allowed_tools for this tool, as a format. denied is an entry of
	// denied_tools.
	allow, denied string
	// hook is an event that occurs during a query that calls a tool.
	hook string
	// search is a prompt that makes the agent offer its subagents to the model. It is empty if the
	// agent always offers them.
	search string
	// plugin contains pluginText, which must reach the model.
	plugin runnerscripts.Plugin
}

// pluginText is a text in the plugins of the subjects.
const pluginText = "TEXT-OF-A-PLUGIN"

func subjects() []subject {
	return []subject{claudeSubject(), codexSubject(), geminiSubject(), opencodeSubject(), acpSubject()}
}

func claudeSubject() subject {
	return subject{
		name: "claude", driver: claude.Driver{}, find: testagents.Claude, mode: "default", silent: "acceptEdits", rewrites: true, subagents: true,
		other: "claude-sonnet-4-5", otherSent: "claude-sonnet-4-5",
		pin: "@anthropic-ai/claude-code", npm: "@anthropic-ai/claude-code-linux-x64", packed: "claude",
		model: func(_ testing.TB, s *runnerscripts.Session, url string) {
			s.Agent.Model = "claude-opus-5-5"
			s.Agent.Env = map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"}
		},
		tool: "mcp__%s__add", allow: "mcp__%s", denied: "Edit", hook: "UserPromptSubmit",
		plugin: runnerscripts.Plugin{Name: "plug", Files: []runnerscripts.WorkspaceFile{
			{Path: ".claude-plugin/plugin.json", Text: `{"name":"plug","version":"1.0.0","description":"A plugin"}`},
			{Path: "skills/psk/SKILL.md", Text: "---\nname: psk\ndescription: " + pluginText + "\n---\n\nBody"},
		}},
	}
}

// codexSubject returns the subject that starts fastest.
func codexSubject() subject {
	return subject{
		name: "codex", driver: codex.Driver{}, find: testagents.Codex, mode: "untrusted", silent: "full-access", subagents: true,
		other: "another-model", otherSent: "another-model",
		pin: "@openai/codex", npm: "@openai/codex", packed: "vendor/triple/bin/codex",
		model: func(_ testing.TB, s *runnerscripts.Session, url string) {
			s.Agent.Model = "gpt-5.5"
			s.Agent.Env = map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"}
		},
		tool: "mcp__%s/add", allow: "mcp__%s", denied: "view_image", hook: "UserPromptSubmit",
		search: "call-tool `tool_search {\"query\":\"spawn agent\"}`",
	}
}

// importingCodex is codexSubject with imports: a rule looks at what the model gets, and not at the transcript.
func importingCodex() subject {
	s := codexSubject()
	s.imports = true
	return s
}

func geminiSubject() subject {
	return subject{
		name: "gemini", driver: gemini.Driver{}, find: testagents.Gemini, mode: "default", silent: "autoEdit", hidesContext: true, forgets: true,
		other: "gemini-2.5-flash", otherSent: "gemini-2.5-flash",
		pin: "@google/gemini-cli", npm: "@google/gemini-cli", packed: "bundle/gemini.js",
		model: func(_ testing.TB, s *runnerscripts.Session, url string) {
			s.Agent.Model = "gemini-2.5-pro"
			s.Agent.Env = map[string]string{"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "test-key"}
		},
		tool: "mcp_%s_add", allow: "mcp_%s_add", denied: "web_fetch", hook: "UserPromptSubmit",
		plugin: runnerscripts.Plugin{Name: "plug", Files: []runnerscripts.WorkspaceFile{
			{Path: "gemini-extension.json", Text: `{"name":"plug","version":"1.0.0"}`},
			{Path: "GEMINI.md", Text: pluginText},
		}},
	}
}

// scriptedProvider returns the configuration of an OpenCode provider that serves the scripted
// model.
func scriptedProvider(url string) string {
	const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"modalities":{"input":["text","image","pdf"],"output":["text"]},"cost":{"input":1,"output":2}}`
	return fmt.Sprintf(`"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"%s/v1","apiKey":"test-key"},`+
		`"models":{"small":%s,"large":%s}}}`, url, model, model)
}

func opencodeSubject() subject {
	return subject{
		name: "opencode", driver: opencode.Driver{}, find: testagents.OpenCode, mode: "build", silent: "acceptEdits", subagents: true, imports: true,
		other: "scripted/large", otherSent: "large",
		pin: "opencode-linux-x64", npm: "opencode-linux-x64", packed: "bin/opencode",
		model: func(t testing.TB, s *runnerscripts.Session, url string) {
			s.Agent.Model = "scripted/small"
			s.Agent.Config = []byte("{" + scriptedProvider(url) + "}")
			s.Agent.Env = map[string]string{"PATH": filepath.Dir(testagents.Ripgrep(t)) + ":" + os.Getenv("PATH")}
		},
		tool: "%s_add", allow: "%s_add", denied: "webfetch", hook: "PreToolUse",
		plugin: runnerscripts.Plugin{Name: "plug", Files: []runnerscripts.WorkspaceFile{{Path: "plug.js", Text: `export const Plug = async () => ({
  tool: { plugged: { description: "` + pluginText + `", args: {}, execute: async () => "done" } },
})`}}},
	}
}

// acpSubject returns OpenCode as an ACP agent: the driver knows only its command.
func acpSubject() subject {
	return subject{
		name: "acp", driver: acp.Driver{}, find: testagents.OpenCode, args: []string{"acp"}, mode: "build", silent: "plan", silentText: "Plan Mode", hidesAPI: true, terse: true,
		other: "scripted/large", otherSent: "large",
		model: func(t testing.TB, s *runnerscripts.Session, url string) {
			s.Agent.PermissionMode = "build" // the configuration makes it ask
			config := filepath.Join(s.Paths.Home, "opencode.json")
			s.Agent.Env = map[string]string{
				"TMPDIR": t.TempDir(), "OPENCODE_CONFIG": config, "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
				"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
			}
			agenttest.WriteFile(t, config, `{"model":"scripted/small","small_model":"scripted/small","autoupdate":false,"share":"disabled",`+
				`"enabled_providers":["scripted"],"permission":{"edit":"ask","bash":"ask"},`+scriptedProvider(url)+"}")
		},
		tool: "%s_add",
	}
}
