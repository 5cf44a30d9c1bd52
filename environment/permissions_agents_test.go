package environment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// decidingAgents are the columns of the table of docs/permissions.md.
var decidingAgents = []string{"claude", "codex", "gemini", "opencode", "acp", "command"}

// decision is a row of the table: a call that each agent makes.
type decision struct {
	call, decides string
	prompt        string            // for each agent that is not in prompts
	prompts       map[string]string // by agent; empty if it has no such tool. WORKSPACE stands for the folder
}

// forAll returns the prompts with which each agent runs a command. That of a user must name its tool.
func forAll(call, decides, prompt string) decision {
	return decision{call: call, decides: decides, prompt: prompt}
}

// ownTools returns the prompts with which each agent calls its own tool.
func ownTools(call, decides string, tools map[string]string) decision {
	d := decision{call: call, decides: decides, prompts: map[string]string{}}
	for _, name := range decidingAgents {
		if d.prompts[name] = ""; tools[name] != "" {
			d.prompts[name] = "call-tool `" + tools[name] + "`"
		}
	}
	return d
}

// decisions are the rows. The rules that they name are those of the docs.
func decisions() []decision {
	return []decision{
		forAll("`touch allowed`", "`allow: Bash(touch *)`", "run-command `touch allowed`"),
		forAll("`touch denied`", "`deny: Bash(touch denied)`", "run-command `touch denied`"),
		forAll("`sh -c 'touch denied'`", "the same", "run-command `sh -c 'touch denied'`"),
		forAll("`touch asked`", "`ask: Bash(touch asked)`", "run-command `touch asked`"),
		forAll("`mkdir other`", "no rule", "run-command `mkdir other`"),
		forAll("`cat secret.txt`, which only reads", "`deny: Bash(cat *)`", "run-command `cat secret.txt`"),
		forAll("writing `src/a`", "`allow: Write(src/**)`", "write-file `src/a`"),
		forAll("writing `src/secret/a`", "`deny: Write(src/secret/**)`", "write-file `src/secret/a`"),
		ownTools("reading `secret.txt`", "`deny: Read(secret.txt)`", map[string]string{
			"claude": `Read {"file_path":"WORKSPACE/secret.txt"}`, "gemini": `read_file {"file_path":"WORKSPACE/secret.txt"}`,
			"opencode": `read {"filePath":"WORKSPACE/secret.txt"}`, "acp": `read_file {"file_path":"WORKSPACE/secret.txt"}`,
			"command": `Read {"file_path":"secret.txt"}`,
		}),
		ownTools("fetching `https://no.example.com`", "`deny: Fetch(no.example.com)`", map[string]string{
			"claude": `WebFetch {"url":"https://no.example.com/","prompt":"x"}`, "gemini": `web_fetch {"prompt":"Read https://no.example.com/"}`,
			"opencode": `webfetch {"url":"https://no.example.com/","format":"text"}`, "acp": `web_fetch {"prompt":"Read https://no.example.com/"}`,
			"command": `Fetch {"url":"https://no.example.com/"}`,
		}),
		ownTools("searching the web", "`deny: WebSearch`", map[string]string{
			"claude": `WebSearch {"query":"words"}`, "gemini": `google_web_search {"query":"words"}`, "acp": `google_web_search {"query":"words"}`,
			"command": `WebSearch {"query":"words"}`,
		}),
		ownTools("a list of things to do", "`deny: *todo*`", map[string]string{
			"gemini": `write_todos {"todos":[]}`, "opencode": `todowrite {"todos":[]}`, "acp": `write_todos {"todos":[]}`, "command": `todo {}`,
		}),
		ownTools("a tool of an MCP server", "`deny: mcp__calc__add`", map[string]string{
			"claude": `mcp__calc__add {"a":2,"b":3}`, "codex": `mcp__calc/add {"a":2,"b":3}`, "gemini": `mcp_calc_add {"a":2,"b":3}`,
			"opencode": `calc_add {"a":2,"b":3}`, "acp": `mcp_calc_add {"a":2,"b":3}`, "command": `mcp__calc__add {"a":2,"b":3}`,
		}),
		{call: "a question to the user", decides: "always asked", prompt: "ask-user", prompts: map[string]string{
			"codex": "", "command": "call-tool `question {}`",
		}},
		{call: "`touch denied` of a subagent", decides: "`deny: Bash(touch denied)`", prompt: "subagent `touch denied`"},
	}
}

// TestTheDecisionsOfTheDocs has each real agent make the same calls, with the same rules.
func TestTheDecisionsOfTheDocs(t *testing.T) {
	api := keyedModel(t)
	rows := decisions()
	cells := map[string][]string{}
	var mu sync.Mutex
	t.Run("agents", func(t *testing.T) {
		for _, name := range decidingAgents {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := decide(t, name, api, rows)
				mu.Lock()
				defer mu.Unlock()
				cells[name] = got
			})
		}
	})
	if len(cells) < len(decidingAgents) || t.Failed() {
		return // not all have run
	}
	table := fmt.Sprintf("| a call | decides | %s |\n|---%s|\n", strings.Join(decidingAgents, " | "), strings.Repeat("|---", len(decidingAgents)+1))
	for i, row := range rows {
		table += "| " + row.call + " | " + row.decides
		for _, name := range decidingAgents {
			table += " | " + cells[name][i]
		}
		table += " |\n"
	}
	docs, err := os.ReadFile("../docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(docs), table) {
		t.Errorf("docs/permissions.md has another table than\n%s", table)
	}
}

// decide returns what becomes of the calls of an agent.
func decide(t *testing.T, name, api string, rows []decision) (cells []string) {
	t.Helper()
	env := create(t, decidingConfig(t, name, api))
	for _, row := range rows {
		prompt, ok := row.prompts[name]
		if !ok {
			prompt = row.prompt
		}
		if prompt == "" {
			cells = append(cells, "")
			continue
		}
		events, err := collect(t.Context(), env, Query{Prompt: "please " + strings.ReplaceAll(prompt, "WORKSPACE", env.Primitive().Paths().Workspace)})
		if err != nil {
			t.Fatalf("%s: %v", prompt, err)
		}
		cells = append(cells, endOf(t, events))
		for _, ev := range events {
			if strings.Contains(string(ev.Payload), "hidden words") || strings.Contains(string(ev.Payload), "the sum is") {
				t.Errorf("%s: it was read: %s", prompt, ev.Payload)
			}
		}
	}
	there := workspaceOf(t, env)
	for file, want := range map[string]bool{"allowed": true, "asked": true, "denied": false, "other": false, "src/a": true, "src/secret/a": false} {
		if _, found := there[file]; found != want {
			t.Errorf("%s is there: %v, want %v", file, found, want)
		}
	}
	return cells
}

// decidingConfig has the rules of the docs. The user allows what is asked, and what a rule allows, and nothing else.
func decidingConfig(t *testing.T, name, api string) (cfg Config) {
	t.Helper()
	for _, c := range append(keyedAgents(), otherAgents()[1]) {
		if c.name == name {
			cfg = c.local(t, api)
		}
	}
	if name == "acp" {
		cfg = geminiOverACP(t, api)
	}
	cfg.Agent.PermissionMode = ""
	cfg.Permissions = permission.Rules{
		Allow: []string{"Bash(touch *)", "Write(src/**)"},
		Ask:   []string{"Bash(touch asked)"},
		Deny:  []string{"Bash(touch denied)", "Bash(cat *)", "Write(src/secret/**)", "Read(secret.txt)", "Fetch(no.example.com)", "WebSearch", "*todo*", "mcp__calc__add"},
	}
	cfg.Workspace = append(cfg.Workspace, Source{Files: []File{{Path: "secret.txt", Content: "hidden words\n"}}})
	if name != "command" {
		cfg.Profile.MCPServers = []runnerscripts.MCPServer{calc(t)}
	}
	cfg.OnPermission = func(_ context.Context, req PermissionRequest) PermissionDecision {
		call := req.ToolCall.Title + string(req.ToolCall.RawInput)
		if strings.Contains(call, "touch asked") || name == "acp" && strings.Contains(call, "touch allowed") {
			return req.Allow()
		}
		return req.Reject("")
	}
	return cfg
}

// calc returns an MCP server with the tool add.
func calc(t *testing.T) runnerscripts.MCPServer {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "src"), os.DirFS("../internal/test/agenttest/testdata")); err != nil {
		t.Fatal(err)
	}
	return runnerscripts.MCPServer{
		Name: "calc", Command: []string{"sh", "-c", "cd " + dir + " && cp src/mcp.sh src/server.sh && exec sh src/server.sh 'with an argument'"},
		Env: map[string]string{"MCP_LOG": filepath.Join(dir, "log")},
	}
}

// endOf returns a cell of the table.
func endOf(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	var all []string
	for _, ev := range events {
		done, ok := ev.Value().(*runnerscripts.PermissionResolved)
		if !ok {
			continue
		}
		end := "deny"
		switch {
		case done.Reason == runnerscripts.ReasonAnswered:
			end = "ask"
		case done.Kind.Allows():
			end = "allow"
		}
		if strings.HasPrefix(done.ID, "call-") {
			end += ", held"
		}
		all = append(all, end)
	}
	if len(all) > 0 {
		return strings.Join(all, "; ")
	}
	withheld := regexp.MustCompile("No such tool available|not found in registry|tried to call unavailable tool")
	if slices.ContainsFunc(events, func(ev runnerscripts.Event) bool { return withheld.Match(ev.Payload) }) {
		return "withheld"
	}
	if strings.Contains(conversation(t, events), "No tool for this is on offer.") {
		return ""
	}
	return "unasked"
}

// requests describes the calls that the agent asked for.
func requests(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	var all []string
	for _, ev := range events {
		if ev.Type == runnerscripts.TypePermissionRequest {
			req, err := runnerscripts.Payload[PermissionRequest](ev)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%q %s %q %s %v", req.ToolCall.Name, req.ToolCall.Kind, req.ToolCall.Title, req.ToolCall.RawInput, req.ToolCall.Locations))
		}
	}
	return strings.Join(all, "; ")
}
