package claude

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The places of a profile below the session's home: the program's configuration folder for
// files that the program finds by itself, and our own folder for files named by flags, because
// the program modifies such files in its own folder.
const (
	rulesDir    = ".claude/rules"
	skillsDir   = ".claude/skills"
	commandsDir = ".claude/commands"
	agentsDir   = ".claude/agents"
	// installedDir is where the program keeps plugins of marketplaces.
	installedDir = ".claude/plugins"

	ownDir       = ".config/agentenv/claude"
	settingsFile = ownDir + "/settings.json"
	serversFile  = ownDir + "/mcp.json"
	pluginsDir   = ownDir + "/plugins"
)

// The frontmatter keys that the program supports, besides those with a field in the profile.
var (
	commandKeys = []string{
		"agent", "allowed-tools", "argument-hint", "arguments", "background", "context", "disable-model-invocation",
		"disallowed-tools", "disallowedTools", "effort", "hooks", "metadata", "model", "name", "paths", "shell",
		"user-invocable", "version", "when_to_use",
	}
	subagentKeys = []string{
		"autoCompactWindow", "background", "color", "disallowedTools", "effort", "experimental", "hooks",
		"initialPrompt", "isolation", "maxTurns", "mcpServers", "memory", "observeSubagents", "observeToolResults",
		"observer", "observerMessage", "omitClaudeMd", "permissionMode", "skills",
	}
)

// checkProfile refuses what the program would silently ignore.
func checkProfile(p runnerscripts.Profile) error {
	for i, c := range p.Commands {
		if err := agent.CheckFrontmatter("Claude Code", fmt.Sprintf("profile.commands[%d]", i), c.Frontmatter, commandKeys...); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Skills, func(s runnerscripts.Skill) bool { return s.Name == c.Name }) {
			return agent.Invalid("rename profile.commands[%d]: there is a skill %q too, and both are called /%s", i, c.Name, c.Name)
		}
	}
	for i, s := range p.Subagents {
		if err := agent.CheckFrontmatter("Claude Code", fmt.Sprintf("profile.subagents[%d]", i), s.Frontmatter, subagentKeys...); err != nil {
			return err
		}
	}
	return nil
}

// profileFiles returns the files of a profile, relative to the session's home.
func profileFiles(s runnerscripts.Session, p runnerscripts.Profile) ([]runnerscripts.WorkspaceFile, error) {
	var files []runnerscripts.WorkspaceFile
	for _, r := range p.Rules {
		files = append(files, runnerscripts.WorkspaceFile{Path: path.Join(rulesDir, r.Name+".md"), Text: r.Content})
	}
	files = append(files, agent.SkillFiles(skillsDir, p.Skills)...)
	for _, c := range p.Commands {
		front := withKeys(c.Frontmatter, map[string]any{"description": c.Description})
		files = append(files, agent.Markdown(path.Join(commandsDir, c.Name+".md"), front, c.Content))
	}
	for _, a := range p.Subagents {
		front := withKeys(a.Frontmatter, map[string]any{"name": a.Name, "description": a.Description, "model": a.Model})
		if len(a.Tools) > 0 {
			front["tools"] = a.Tools
		}
		files = append(files, agent.Markdown(path.Join(agentsDir, a.Name+".md"), front, a.Prompt))
	}
	for _, plugin := range p.Plugins {
		files = append(files, agent.Below(path.Join(pluginsDir, plugin.Name), plugin.Files)...)
	}
	if hasSettings(s, p) {
		f, err := jsonFile(settingsFile, profileSettings(s, p))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(p.MCPServers) > 0 {
		f, err := jsonFile(serversFile, map[string]any{"mcpServers": servers(s, p)})
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func withKeys(front, more map[string]any) map[string]any {
	all := maps.Clone(more)
	maps.Copy(all, front)
	return all
}

func jsonFile(name string, v any) (runnerscripts.WorkspaceFile, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return runnerscripts.WorkspaceFile{Path: name, Content: append(data, '\n'), Mode: 0o600}, err
}

// settings are the program's settings that a profile can set.
type settings struct {
	Permissions permissions               `json:"permissions"`
	Hooks       map[string][]hooksMatcher `json:"hooks,omitempty"`
}

type permissions struct {
	Allow []string `json:"allow,omitempty"`
	Ask   []string `json:"ask,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// hooksMatcher are the hooks for some tools.
type hooksMatcher struct {
	Matcher string `json:"matcher,omitempty"`
	Hooks   []hook `json:"hooks"`
}

type hook struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout,omitempty"` // in seconds
}

// asked are the program's tools that make calls of a portable tool, some without a question.
var asked = map[string][]string{
	runnerscripts.AsksBash: {"Bash"},
	runnerscripts.AsksRead: {"Read", "Grep", "Glob"},
}

// hasSettings reports whether a session needs a file of settings.
func hasSettings(s runnerscripts.Session, p runnerscripts.Profile) bool {
	return len(s.Asks) > 0 || len(p.AllowedTools)+len(p.DeniedTools)+len(p.Hooks)+len(p.Skills)+len(p.Plugins) > 0
}

func profileSettings(session runnerscripts.Session, p runnerscripts.Profile) settings {
	s := settings{Permissions: permissions{Allow: slices.Clone(p.AllowedTools), Deny: p.DeniedTools}}
	for _, tool := range session.Asks {
		s.Permissions.Ask = append(s.Permissions.Ask, asked[tool]...)
	}
	for _, dir := range readable(p) {
		if !path.IsAbs(dir) {
			// The program asks before it reads files outside of the workspace, including the
			// files beside a SKILL.md.
			s.Permissions.Allow = append(s.Permissions.Allow, "Read(~/"+dir+"/**)")
		}
	}
	for _, h := range p.Hooks {
		if s.Hooks == nil {
			s.Hooks = map[string][]hooksMatcher{}
		}
		s.Hooks[h.Event] = append(s.Hooks[h.Event], hooksMatcher{
			Matcher: h.Matcher, Hooks: []hook{{Type: "command", Command: h.Command, Timeout: h.TimeoutSeconds}},
		})
	}
	return s
}

// readable returns the folders of a profile whose files may be read. Relative ones are in the
// session's home.
func readable(p runnerscripts.Profile) []string {
	var dirs []string
	if len(p.Skills) > 0 {
		dirs = append(dirs, skillsDir)
	}
	for _, plugin := range p.Plugins {
		switch {
		case plugin.Marketplace == "":
			dirs = append(dirs, path.Join(pluginsDir, plugin.Name))
		case path.IsAbs(plugin.Marketplace):
			dirs = append(dirs, plugin.Marketplace) // plugins of a folder are used in place
		default:
			dirs = append(dirs, installedDir)
		}
	}
	return dirs
}

// server is an MCP server in the program's format. The program expands ${NAME} itself.
type server struct {
	Type    string            `json:"type"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

func servers(s runnerscripts.Session, p runnerscripts.Profile) map[string]server {
	all := map[string]server{}
	for _, m := range agent.Servers(s, p) {
		if m.URL != "" {
			all[m.Name] = server{Type: "http", URL: m.URL, Headers: m.Headers}
			continue
		}
		all[m.Name] = server{Type: "stdio", Command: m.Command[0], Args: m.Command[1:], Env: m.Env}
	}
	return all
}

// profileFlags returns the program's flags for a profile written by Setup, and for what the
// workspace may add to it.
func profileFlags(s runnerscripts.Session, p runnerscripts.Profile) []string {
	below := func(name string) string { return filepath.Join(s.Paths.Home, filepath.FromSlash(name)) }
	var flags []string
	if !s.Agent.TrustWorkspace {
		flags = append(flags, "--setting-sources", "user")
		if len(p.Plugins) == 0 {
			// The flag also disables the servers of plugins. The settings already disable those
			// of the workspace.
			flags = append(flags, "--strict-mcp-config")
		}
	}
	if hasSettings(s, p) {
		flags = append(flags, "--settings", below(settingsFile))
	}
	if len(p.MCPServers) > 0 {
		flags = append(flags, "--mcp-config", below(serversFile))
	}
	for _, plugin := range p.Plugins {
		if plugin.Marketplace == "" {
			flags = append(flags, "--plugin-dir", below(path.Join(pluginsDir, plugin.Name)))
		}
	}
	return flags
}

// checkWritten refuses a profile that has not been written. The program would report that with
// an unclear error, or not at all.
func checkWritten(s runnerscripts.Session, p runnerscripts.Profile) error {
	files, err := profileFiles(s, p)
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(s.Paths.Home, filepath.FromSlash(f.Path))); err != nil {
			return agent.Invalid("send setup-session with this profile first: a file of it cannot be read: %v", err)
		}
	}
	return nil
}
