package gemini

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The priorities of the driver's rules. User rules have priorities from 0 to 999. The program adds
// a rule with priority 950 for what the user allows for the session.
const (
	denyPriority  = 999
	askPriority   = 960
	allowPriority = 900
)

// shellTool is the tool that runs commands. Its rules may match a prefix of the command.
const shellTool = "run_shell_command"

// toolPattern matches a tool in the program's syntax: "write_file", "mcp_calc_add",
// "run_shell_command(git log)".
var toolPattern = agent.Pattern{Expr: `^([A-Za-z0-9_*.-]+)(?:\((.+)\))?$`}

// policy returns the TOML file of rules for the allowed and denied tools and the subagents of a
// profile, and for the tools about which the session must ask, or "" if there are none. The program does not offer denied tools to the model. The allow
// rules do not apply in plan mode, which keeps its own rules. The rules allow the subagents,
// because the driven program cannot ask about them and would deny them.
func policy(s runnerscripts.Session, p runnerscripts.Profile) (string, error) {
	var b strings.Builder
	for _, tool := range s.Asks {
		// With argsPattern the program does not take a command for harmless.
		fmt.Fprintf(&b, "[[rule]]\ntoolName = %s\nargsPattern = \".\"\ndecision = \"ask_user\"\npriority = %d\n", asked[tool], askPriority)
		for _, name := range slices.Concat(ownSubagents, names(p.Subagents)) {
			fmt.Fprintf(&b, subagentDenied, name, asked[tool], askPriority+1)
		}
	}
	for i, word := range p.DeniedTools {
		deny := fmt.Sprintf("decision = \"deny\"\npriority = %d\n", denyPriority)
		if err := addRule(&b, fmt.Sprintf("denied_tools[%d]", i), word, deny); err != nil {
			return "", err
		}
	}
	allow := fmt.Sprintf("decision = \"allow\"\npriority = %d\nmodes = [%q, %q, %q]\n", allowPriority, modeDefault, modeAutoEdit, modeYOLO)
	for i, word := range p.AllowedTools {
		if err := addRule(&b, fmt.Sprintf("allowed_tools[%d]", i), word, allow); err != nil {
			return "", err
		}
	}
	for _, a := range p.Subagents {
		if err := addRule(&b, "subagents", a.Name, allow); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, subagentRules, a.Name, readTools, a.Name, a.Name)
	}
	return b.String(), nil
}

// readTools are the tools that the program allows without asking.
const readTools = `["glob", "grep_search", "list_directory", "read_file", "google_web_search", "update_topic", ` +
	`"complete_task", "read_mcp_resource", "list_mcp_resources"]`

// subagentRules are the rules for the tools of a subagent. The driven program cannot ask about
// them and would wait forever, so the rules deny what it would ask for.
const subagentRules = `[[rule]]
subagent = %q
toolName = %s
decision = "allow"
priority = 20
[[rule]]
subagent = %q
toolName = ["write_file", "replace"]
decision = "allow"
priority = 20
modes = ["autoEdit"]
[[rule]]
subagent = %q
toolName = "*"
decision = "deny"
denyMessage = "A subagent cannot ask for the permission that this needs. Report that the main agent has to do it."
priority = 10
modes = ["default", "autoEdit", "plan"]
`

// ownSubagents are those that the program has by itself.
var ownSubagents = []string{"codebase_investigator", "cli_help", "generalist"}

// subagentDenied is the rule for what a subagent would have to ask for.
const subagentDenied = `[[rule]]
subagent = %q
toolName = %s
decision = "deny"
denyMessage = "A subagent cannot ask for the permission that this needs. Report that the main agent has to do it."
priority = %d
`

func names(list []runnerscripts.Subagent) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = s.Name
	}
	return all
}

// asked are the program's tools that make calls of a portable tool, some without a question.
var asked = map[string]string{
	runnerscripts.AsksBash: `["` + shellTool + `"]`,
	runnerscripts.AsksRead: `["glob", "grep_search", "search_file_content", "list_directory", "read_file", "read_many_files"]`,
}

func addRule(b *strings.Builder, field, word, rest string) error {
	m := toolPattern.Get().FindStringSubmatch(word)
	if m == nil || m[2] != "" && m[1] != shellTool || strings.ContainsFunc(word, isControl) {
		return agent.Invalid("give profile.%s as a tool of the Gemini CLI, such as %q, or %q with how a command begins, not %q",
			field, "write_file", shellTool+"(git log)", word)
	}
	fmt.Fprintf(b, "[[rule]]\ntoolName = %s\n", tomlString(m[1]))
	if m[2] != "" {
		fmt.Fprintf(b, "commandPrefix = %s\n", tomlString(m[2]))
	}
	b.WriteString(rest)
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// tomlString returns s as a TOML string. s must not contain control characters.
func tomlString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
