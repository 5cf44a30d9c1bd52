package gemini

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The paths of a profile's files, below the session's home.
const (
	memoryPath    = ".gemini/GEMINI.md"
	skillsPath    = ".gemini/skills"
	agentsPath    = ".gemini/agents"
	policiesPath  = ".gemini/policies"
	extensionPath = ".gemini/extensions"
	// ownExtension contains the profile's hooks: hooks in settings run only in a trusted
	// folder.
	ownExtension = "agentenv-profile"
	manifestFile = "gemini-extension.json"
)

// hookEvents maps the events of Claude Code to those for which the driven program runs hooks. The
// program runs none around tool calls or at the start.
var hookEvents = map[string]string{
	"UserPromptSubmit": "BeforeAgent",
	"Stop":             "AfterAgent",
	"PreCompact":       "PreCompress",
	"SessionEnd":       "SessionEnd",
}

// subagentKeys are the frontmatter keys of a subagent that the program knows, besides those with a
// field of their own in the profile.
var subagentKeys = []string{"display_name", "temperature", "max_turns", "timeout_mins"}

// subagentName matches the names that the program accepts for subagents.
var subagentName = agent.Pattern{Expr: `^[a-z0-9_-]+$`}

// checkProfile returns an error for what the program would ignore or refuse.
func checkProfile(s runnerscripts.Session, p runnerscripts.Profile) error {
	for i, a := range p.Subagents {
		if !subagentName.Get().MatchString(a.Name) {
			return agent.Invalid(`rename profile.subagents[%d]: Gemini CLI takes lower-case letters, digits, "-" and "_", not %q`, i, a.Name)
		}
		if err := agent.CheckFrontmatter("Gemini CLI", fmt.Sprintf("profile.subagents[%d]", i), a.Frontmatter, subagentKeys...); err != nil {
			return err
		}
	}
	for i, c := range p.Commands {
		if err := agent.CheckFrontmatter("Gemini CLI", fmt.Sprintf("profile.commands[%d]", i), c.Frontmatter); err != nil {
			return err
		}
	}
	for i, h := range p.Hooks {
		if hookEvents[h.Event] == "" {
			return agent.Unsupported("leave out profile.hooks[%d]: Gemini CLI runs none at %q when it is driven (it does at: %s)",
				i, h.Event, strings.Join(slices.Sorted(maps.Keys(hookEvents)), ", "))
		}
		if h.Matcher != "" {
			return agent.Unsupported("leave out profile.hooks[%d].matcher: Gemini CLI has none for %q", i, h.Event)
		}
	}
	if err := errors.Join(checkPlugins(p.Plugins), checkServers(p.MCPServers)); err != nil {
		return err
	}
	if _, err := policy(s, p); err != nil {
		return err
	}
	return checkTrust(s, p)
}

// manifest has the relevant fields of an extension's manifest.
type manifest struct {
	Name       string         `json:"name"`
	Version    string         `json:"version"`
	MCPServers map[string]any `json:"mcpServers"`
}

func checkPlugins(plugins []runnerscripts.Plugin) error {
	for i, p := range plugins {
		if p.Marketplace != "" {
			return agent.Unsupported("give profile.plugins[%d] as files instead of a marketplace: Gemini CLI has no marketplaces of extensions", i)
		}
		if m, err := readManifest(p); err != nil || m.Name != p.Name || m.Version == "" {
			return agent.Invalid("give profile.plugins[%d].files a %s with the name %q and a version: %v", i, manifestFile, p.Name, err)
		}
		if p.Name == ownExtension {
			return agent.Invalid("rename profile.plugins[%d]: %q is taken", i, p.Name)
		}
	}
	return nil
}

func readManifest(p runnerscripts.Plugin) (manifest, error) {
	var m manifest
	for _, f := range p.Files {
		if f.Path == manifestFile {
			return m, json.Unmarshal(f.Data(), &m)
		}
	}
	return m, fs.ErrNotExist
}

// blockedVariables are the variables that the program itself withholds from MCP servers.
var blockedVariables = []string{
	"BASH_ENV", "CLASSPATH", "CORECLR_ENABLE_PROFILING", "CORECLR_PROFILER_PATH", "DOTNET_STARTUP_HOOKS",
	"DYLD_FALLBACK_FRAMEWORK_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FORCE_FLAT_NAMESPACE", "DYLD_FRAMEWORK_PATH",
	"DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "ELECTRON_RUN_AS_NODE", "ENV", "JAVA_TOOL_OPTIONS", "LD_AUDIT",
	"LD_DEBUG", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_PROFILE", "NODE_CLI_FLAGS", "NODE_OPTIONS", "NODE_PATH", "PERL5DB",
	"PERL5LIB", "PERL5OPT", "PYTHONPATH", "PYTHONSTARTUP", "RUBYLIB", "RUBYOPT", "_FORCE_NODE_OPTIONS", "_JAVA_OPTIONS",
}

func checkServers(servers []runnerscripts.MCPServer) error {
	for i, m := range servers {
		for _, key := range slices.Sorted(maps.Keys(m.Env)) {
			if slices.Contains(blockedVariables, strings.ToUpper(key)) {
				return agent.Unsupported("leave %s out of profile.mcp_servers[%d].env: Gemini CLI does not pass it on to MCP servers", key, i)
			}
		}
	}
	return nil
}

// ownFolders are the folders of a trusted workspace from which the program reads settings,
// hooks, MCP servers and more.
var ownFolders = []string{".gemini", ".agents"}

// trusts reports whether the driver makes the program trust the workspace. In an untrusted
// workspace the program starts no MCP server from any source.
func trusts(s runnerscripts.Session, p runnerscripts.Profile) bool {
	return s.Agent.TrustWorkspace || len(p.MCPServers) > 0 || slices.ContainsFunc(p.Plugins, func(p runnerscripts.Plugin) bool {
		m, err := readManifest(p)
		return err == nil && len(m.MCPServers) > 0
	})
}

// checkTrust returns an error for MCP servers in an untrusted workspace that contains files of
// ownFolders: the program has one switch for both.
func checkTrust(s runnerscripts.Session, p runnerscripts.Profile) error {
	if s.Agent.TrustWorkspace || !trusts(s, p) {
		return nil
	}
	for _, name := range ownFolders {
		if _, err := os.Lstat(filepath.Join(s.Paths.Workspace, name)); !errors.Is(err, fs.ErrNotExist) {
			return agent.Unsupported("set agent.trust_workspace, remove %s from the workspace, or leave MCP servers out of the profile: "+
				"Gemini CLI starts some only where it also runs what the workspace says", name)
		}
	}
	return nil
}

// profileFiles returns the files of a profile, and of the system prompt. Their paths are relative
// to the session's home.
func profileFiles(s runnerscripts.Session, p runnerscripts.Profile) ([]runnerscripts.WorkspaceFile, error) {
	files := agent.SkillFiles(skillsPath, p.Skills)
	if memory := strings.TrimSpace(s.Agent.SystemPrompt + "\n\n" + agent.Rules(p.Rules)); memory != "" {
		files = append(files, runnerscripts.WorkspaceFile{Path: memoryPath, Text: memory + "\n"})
	}
	for _, a := range p.Subagents {
		front := maps.Clone(a.Frontmatter)
		if front == nil {
			front = map[string]any{}
		}
		front["name"], front["description"], front["model"] = a.Name, a.Description, a.Model
		if len(a.Tools) > 0 {
			front["tools"] = a.Tools
		}
		files = append(files, agent.Markdown(path.Join(agentsPath, a.Name+".md"), front, a.Prompt))
	}
	for _, p := range p.Plugins {
		files = append(files, agent.Below(path.Join(extensionPath, p.Name), p.Files)...)
	}
	rules, err := policy(s, p)
	if err != nil {
		return nil, err
	}
	if rules != "" {
		files = append(files, runnerscripts.WorkspaceFile{Path: path.Join(policiesPath, "agentenv.toml"), Text: rules})
	}
	hooks, err := hookFiles(p.Hooks)
	return append(files, hooks...), err
}

// hookFiles returns the files of an extension with the hooks.
func hookFiles(hooks []runnerscripts.Hook) ([]runnerscripts.WorkspaceFile, error) {
	if len(hooks) == 0 {
		return nil, nil
	}
	type command struct {
		Type    string `json:"type"`
		Command string `json:"command"`
		Timeout int    `json:"timeout,omitempty"` // milliseconds
	}
	type definition struct {
		Hooks []command `json:"hooks"`
	}
	events := map[string][]definition{}
	for _, h := range hooks {
		name := hookEvents[h.Event]
		events[name] = append(events[name], definition{Hooks: []command{{"command", h.Command, h.TimeoutSeconds * 1000}}})
	}
	config, err := json.Marshal(map[string]any{"hooks": events})
	if err != nil {
		return nil, err
	}
	return agent.Below(path.Join(extensionPath, ownExtension), []runnerscripts.WorkspaceFile{
		{Path: manifestFile, Text: fmt.Sprintf(`{"name":%q,"version":"1.0.0"}`, ownExtension)},
		{Path: "hooks/hooks.json", Content: config},
	}), nil
}
