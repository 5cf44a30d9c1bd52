package opencode

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program's own folders, below the session's home.
const (
	programDir = ".config/" + programName
	skillsDir  = programDir + "/skills"
)

func ruleFile(name string) string  { return programDir + "/rules/" + name + ".md" }
func pluginDir(name string) string { return programDir + "/plugins/" + name }

// installProfile writes the files of a profile in the program's own layout, replaces those of an
// earlier profile, and installs the MCP servers.
func installProfile(ctx context.Context, s runnerscripts.Session, p runnerscripts.Profile) error {
	files := agent.SkillFiles(skillsDir, p.Skills)
	for _, r := range p.Rules {
		files = append(files, runnerscripts.WorkspaceFile{Path: ruleFile(r.Name), Text: r.Content})
	}
	for _, c := range p.Commands {
		front := withKey(c.Frontmatter, "description", c.Description)
		files = append(files, agent.Markdown(programDir+"/commands/"+c.Name+".md", front, c.Content))
	}
	subagents, err := subagentFiles(s, p)
	if err != nil {
		return err
	}
	files = append(files, subagents...)
	for _, plugin := range p.Plugins {
		files = append(files, agent.Below(pluginDir(plugin.Name), plugin.Files)...)
	}
	if len(p.Hooks) > 0 {
		files = append(files, hookPlugin(p.Hooks))
	}
	if err := agent.WriteProfile(s, files); err != nil {
		return err
	}
	return agent.InstallServers(ctx, s, p, environment(s, nil))
}

func withKey(front map[string]any, key string, value any) map[string]any {
	front = maps.Clone(front)
	if front == nil {
		front = map[string]any{}
	}
	front[key] = value
	return front
}

// subagentFiles returns the files that define the subagents as agents of the program.
func subagentFiles(s runnerscripts.Session, p runnerscripts.Profile) ([]runnerscripts.WorkspaceFile, error) {
	rules, err := permissionRules(s, p)
	if err != nil {
		return nil, err
	}
	var files []runnerscripts.WorkspaceFile
	for i, sub := range p.Subagents {
		front := withKey(sub.Frontmatter, "description", sub.Description)
		front["mode"], front["model"] = "subagent", sub.Model
		if len(sub.Tools) > 0 {
			own, err := rules.only(fmt.Sprintf("profile.subagents[%d].tools", i), sub.Tools)
			if err != nil {
				return nil, err
			}
			front["permission"] = own.forProgram(s)
		}
		files = append(files, agent.Markdown(programDir+"/agents/"+sub.Name+".md", front, sub.Prompt))
	}
	return files, nil
}

// checkProfile returns an error if the program does not support a part of the profile.
func checkProfile(p runnerscripts.Profile) error {
	for i, c := range p.Commands {
		where := fmt.Sprintf("profile.commands[%d]", i)
		if err := agent.CheckFrontmatter("OpenCode", where, c.Frontmatter, "agent", "model", "subtask", "variant"); err != nil {
			return err
		}
		if err := checkModel(where+".frontmatter.model", c.Frontmatter["model"]); err != nil {
			return err
		}
	}
	for i, sub := range p.Subagents {
		where := fmt.Sprintf("profile.subagents[%d]", i)
		if slices.Contains([]string{modeBuild, modePlan, "compaction", "summary", "title"}, sub.Name) {
			return agent.Invalid("rename %s: OpenCode has an agent of its own named %q", where, sub.Name)
		}
		if err := agent.CheckFrontmatter("OpenCode", where, sub.Frontmatter, "color", "hidden", "options", "steps", "temperature", "top_p", "variant"); err != nil {
			return err
		}
		if sub.Model == "" {
			continue
		}
		if err := checkModel(where+".model", sub.Model); err != nil {
			return err
		}
	}
	if err := checkHooks(p.Hooks); err != nil {
		return err
	}
	return checkPlugins(p.Plugins)
}

func checkModel(where string, model any) error {
	if model == nil {
		return nil
	}
	if _, err := parseModel(fmt.Sprint(model)); err != nil {
		return agent.Invalid("correct %s: %v", where, err)
	}
	return nil
}

// pluginEntries returns the names of files that make the program load their folder as a plugin.
func pluginEntries() []string {
	return []string{"package.json", "index.ts", "index.tsx", "index.js", "index.mjs", "index.cjs"}
}

// pluginEntry returns the path in a plugin's folder that the program loads. "." is the folder
// itself; "" means that there is nothing to load.
func pluginEntry(p runnerscripts.Plugin) string {
	var scripts []string
	for _, f := range p.Files {
		if slices.Contains(pluginEntries(), f.Path) {
			return "."
		}
		if !strings.Contains(f.Path, "/") && slices.Contains([]string{".ts", ".js", ".mjs", ".cjs"}, path.Ext(f.Path)) {
			scripts = append(scripts, f.Path)
		}
	}
	if len(scripts) != 1 {
		return ""
	}
	return scripts[0]
}

func checkPlugins(plugins []runnerscripts.Plugin) error {
	for i, p := range plugins {
		where := fmt.Sprintf("profile.plugins[%d]", i)
		if p.Marketplace != "" {
			return agent.Unsupported("give %s its files instead of a marketplace: OpenCode has none, and packages of a registry "+
				"are not fetched; agent.config.plugin may name them", where)
		}
		if pluginEntry(p) == "" {
			return agent.Invalid("give %s.files one script, or %s: OpenCode does not know what to load", where, strings.Join(pluginEntries(), " or "))
		}
	}
	return nil
}

//go:embed hooks.js
var hookScript string

// hook is a hook of a profile, in the format of hooks.js.
type hook struct {
	Event   string   `json:"event"`
	Tools   []string `json:"tools"` // patterns of the names of tools; empty means all
	Command string   `json:"command"`
	Timeout int      `json:"timeout"` // in seconds
}

const (
	hookTime   = 60 // the default timeout of a hook, in seconds
	hookBefore = "PreToolUse"
	hookAfter  = "PostToolUse"
)

// hookPlugin returns a plugin that runs the hooks. The program has no hooks of its own.
func hookPlugin(hooks []runnerscripts.Hook) runnerscripts.WorkspaceFile {
	list := make([]hook, len(hooks))
	for i, h := range hooks {
		list[i] = hook{Event: h.Event, Command: h.Command, Timeout: h.TimeoutSeconds}
		if h.Matcher != "" {
			list[i].Tools = strings.Split(h.Matcher, "|")
		}
		if h.TimeoutSeconds == 0 {
			list[i].Timeout = hookTime
		}
	}
	return runnerscripts.WorkspaceFile{
		Path: programDir + "/plugins/agentenv-hooks.js", Mode: 0o600,
		Text: fmt.Sprintf("const hooks = %s\n\n%s", rawJSON(list), hookScript),
	}
}

// matcherPattern matches names of tools: patterns with "*", separated by "|".
var matcherPattern = agent.Pattern{Expr: `^[A-Za-z0-9_.*-]+(\|[A-Za-z0-9_.*-]+)*$`}

func checkHooks(hooks []runnerscripts.Hook) error {
	for i, h := range hooks {
		where := fmt.Sprintf("profile.hooks[%d]", i)
		if h.Event != hookBefore && h.Event != hookAfter {
			return agent.Unsupported("leave out %s: OpenCode has hooks for the events %s and %s, not for %q", where, hookBefore, hookAfter, h.Event)
		}
		if h.Matcher != "" && !matcherPattern.Get().MatchString(h.Matcher) {
			return agent.Invalid(`give %s.matcher as names of OpenCode's tools with "|" between them and "*" for anything, such as "edit|write|calc_*", not %q`, where, h.Matcher)
		}
	}
	return nil
}
