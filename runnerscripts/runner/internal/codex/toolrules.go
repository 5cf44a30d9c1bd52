package codex

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The tools of Codex that a profile can allow or deny.
const (
	toolCommand = "exec_command"
	toolBash    = "Bash" // the name of exec_command in hooks
	toolPatch   = "apply_patch"
	toolSearch  = "web_search"
	toolImage   = "view_image"
	toolAsk     = "request_user_input"
	toolAgents  = "spawn_agent"
	toolMCP     = "mcp__" // followed by SERVER or SERVER__TOOL
)

// toolRules are the allowed and denied tools of a profile in Codex's terms. Codex needs a different
// mechanism for almost every tool.
type toolRules struct {
	// policy has the rules for commands, in Codex's rules language.
	policy string
	// settings disable tools.
	settings map[string]any
	servers  []serverRule
	// noPatches says that a hook refuses file changes.
	noPatches bool
	// accepted has the methods of the requests that are allowed without asking the user.
	accepted map[string]bool
}

// serverRule allows or denies tools of an MCP server.
type serverRule struct {
	name    string // as in the profile
	field   string // of the profile
	allowed bool
}

// checkTools returns an error for names that are no tools of Codex, and for rules that Codex cannot
// express.
func checkTools(p runnerscripts.Profile) error {
	known := []string{toolCommand, toolBash, toolPatch, toolSearch, toolImage, toolAsk, toolAgents}
	for field, names := range map[string][]string{fieldAllowed: p.AllowedTools, fieldDenied: p.DeniedTools} {
		for i, name := range names {
			where := fmt.Sprintf("profile.%s[%d]", field, i)
			tool, pattern, hasPattern := toolPattern(name)
			switch {
			case strings.HasPrefix(tool, toolMCP) && !hasPattern:
			case !slices.Contains(known, tool):
				return agent.Unsupported("leave %s out: Codex cannot allow or deny %q, only %v, and mcp__SERVER and mcp__SERVER__TOOL",
					where, name, known)
			case !hasPattern:
			case tool != toolCommand && tool != toolBash:
				return agent.Unsupported("leave the pattern out of %s, %q: of Codex's tools only %s has one", where, name, toolCommand)
			case commandWords(pattern) == nil:
				return agent.Unsupported(`write %s as "%s(first words of the command *)", not %q: that is what Codex goes by`,
					where, tool, name)
			}
		}
	}
	return nil
}

const (
	fieldAllowed = "allowed_tools"
	fieldDenied  = "denied_tools"
)

// toolPattern splits "Bash(git log *)" into the tool and the pattern. ok is false if there is no
// pattern.
func toolPattern(name string) (tool, pattern string, ok bool) {
	tool, pattern, ok = strings.Cut(name, "(")
	if !ok {
		return name, "", false
	}
	pattern, ok = strings.CutSuffix(pattern, ")")
	return tool, pattern, ok
}

// commandWords returns the first words of the commands that a pattern matches; nil if the
// pattern has another form.
func commandWords(pattern string) []string {
	first, ok := strings.CutSuffix(pattern, " *")
	if !ok {
		first, ok = strings.CutSuffix(pattern, ":*")
	}
	words, complete := split(first)
	if !ok || !complete || len(words) == 0 || strings.Contains(first, "*") {
		return nil
	}
	return words
}

// toolRulesOf returns the rules of a checked profile.
func toolRulesOf(p runnerscripts.Profile) toolRules {
	r := toolRules{settings: map[string]any{}, accepted: map[string]bool{}}
	for _, name := range p.AllowedTools {
		tool, pattern, hasPattern := toolPattern(name)
		switch {
		case strings.HasPrefix(tool, toolMCP):
			r.servers = append(r.servers, serverRule{tool, fieldAllowed, true})
		case hasPattern:
			r.addPolicy(pattern, "allow")
		case tool == toolCommand, tool == toolBash:
			r.accepted[askCommand] = true
		case tool == toolPatch:
			r.accepted[askFiles] = true
		}
	}
	for _, name := range p.DeniedTools {
		tool, pattern, hasPattern := toolPattern(name)
		switch {
		case strings.HasPrefix(tool, toolMCP):
			r.servers = append(r.servers, serverRule{tool, fieldDenied, false})
		case hasPattern:
			r.addPolicy(pattern, "forbidden")
		case tool == toolPatch:
			r.noPatches = true
		default:
			merge(r.settings, withoutTool(tool))
		}
	}
	return r
}

// addPolicy adds a rule for commands.
func (r *toolRules) addPolicy(pattern, decision string) {
	r.policy += fmt.Sprintf("prefix_rule(pattern=%s, decision=%q)\n", jsonOf(commandWords(pattern)), decision)
}

// withoutTool returns the settings that remove a tool from the agent.
func withoutTool(tool string) map[string]any {
	switch tool {
	case toolSearch:
		return map[string]any{"web_search": "disabled"}
	case toolImage:
		return map[string]any{"features": map[string]any{"view_image": false}}
	case toolAsk:
		return map[string]any{"tools": map[string]any{"experimental_request_user_input": map[string]any{"enabled": false}}}
	case toolAgents:
		return map[string]any{"features": map[string]any{"multi_agent": false}}
	}
	return map[string]any{"features": map[string]any{"shell_tool": false}}
}

// serverTool splits "mcp__SERVER__TOOL" into one of the servers and a tool. tool is empty if the
// name means all tools of the server.
func serverTool(name string, servers []string) (server, tool string, ok bool) {
	name = strings.TrimPrefix(name, toolMCP)
	for _, s := range servers {
		if name == s {
			return s, "", true
		}
		if tool, ok := strings.CutPrefix(name, s+"__"); ok && tool != "" {
			return s, tool, true
		}
	}
	return "", "", false
}

// apply adds the rule to the settings of its server.
func (r serverRule) apply(server map[string]any, tool string) {
	const approve = "approve"
	switch {
	case r.allowed && tool == "":
		server["default_tools_approval_mode"] = approve
	case r.allowed:
		merge(server, map[string]any{"tools": map[string]any{tool: map[string]any{"approval_mode": approve}}})
	case tool == "":
		server["enabled"] = false
	default:
		list, _ := server["disabled_tools"].([]string)
		server["disabled_tools"] = append(list, tool)
	}
}
