package codex

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// The files of a profile, below the session's home.
const (
	rulesFile    = ".codex/AGENTS.md"
	skillsFolder = ".codex/skills"
	agentsFolder = ".codex/agents"
	hooksFile    = ".codex/hooks.json"
	policyFile   = ".codex/rules/agentenv.rules" // for commands
)

// checkProfile returns an error if the profile needs a feature that Codex lacks.
func checkProfile(p runnerscripts.Profile) error {
	for i, c := range p.Commands {
		if err := checkFrontmatter(fmt.Sprintf("profile.commands[%d]", i), c.Frontmatter, keyHint); err != nil {
			return err
		}
	}
	for i, a := range p.Subagents {
		where := fmt.Sprintf("profile.subagents[%d]", i)
		if len(a.Tools) > 0 {
			return agent.Unsupported("leave %s.tools out: the subagents of Codex have the tools of the agent", where)
		}
		if err := checkFrontmatter(where, a.Frontmatter, keyEffort); err != nil {
			return err
		}
	}
	for i, h := range p.Hooks {
		if !slices.Contains(hookEvents(), h.Event) {
			return agent.Unsupported("choose one of the events of Codex for profile.hooks[%d], %v: %q is none", i, hookEvents(), h.Event)
		}
	}
	return checkTools(p)
}

// The frontmatter keys that Codex or this driver supports. Their values are strings.
const (
	keyHint   = "argument-hint"
	keyEffort = "model_reasoning_effort"
)

func checkFrontmatter(where string, front map[string]any, known string) error {
	if err := agent.CheckFrontmatter("Codex", where, front, known); err != nil {
		return err
	}
	if value, given := front[known]; given {
		if _, ok := value.(string); !ok {
			return agent.Invalid("give %s.frontmatter.%s as a text", where, known)
		}
	}
	return nil
}

// profileFiles returns the files of a profile in Codex's layout. Their paths are relative to the
// session's home.
func profileFiles(p runnerscripts.Profile) []runnerscripts.WorkspaceFile {
	files := agent.SkillFiles(skillsFolder, p.Skills)
	add := func(name, text string) {
		if text != "" {
			files = append(files, runnerscripts.WorkspaceFile{Path: name, Text: text})
		}
	}
	add(rulesFile, agent.Rules(p.Rules))
	for _, a := range p.Subagents {
		add(path.Join(agentsFolder, a.Name+".toml"), role(a))
	}
	add(hooksFile, hooksText(p))
	add(policyFile, toolRulesOf(p).policy)
	return files
}

// role returns the file of a subagent, which Codex calls a role.
func role(a runnerscripts.Subagent) string {
	var b strings.Builder
	set := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", key, quote(value))
		}
	}
	set("name", a.Name)
	set("description", a.Description)
	set("developer_instructions", a.Prompt)
	set("model", a.Model)
	effort, _ := a.Frontmatter[keyEffort].(string)
	set(keyEffort, effort)
	return b.String()
}

// quote returns a string literal for TOML and for the rules language.
func quote(text string) string {
	return strings.ReplaceAll(string(jsonOf(text)), "\x7f", `\u007f`)
}

// profileSettings returns the settings for a profile. own are the settings of agent.config; the
// profile's rules may refer to their MCP servers.
func profileSettings(s runnerscripts.Session, p runnerscripts.Profile, own map[string]any) (map[string]any, error) {
	rules := toolRulesOf(p)
	all := rules.settings
	servers, err := serverSettings(s, p)
	if err != nil {
		return nil, err
	}
	known, _ := own["mcp_servers"].(map[string]any)
	if len(servers)+len(known) > 0 {
		all["mcp_optional_startup_grace_ms"] = serverStart.Milliseconds()
	}
	for _, r := range rules.servers {
		name, tool, ok := serverTool(r.name, slices.Concat(slices.Collect(maps.Keys(servers)), slices.Collect(maps.Keys(known))))
		if !ok {
			return nil, agent.Invalid("remove %q from profile.%s: there is no MCP server for it", r.name, r.field)
		}
		if servers[name] == nil {
			servers[name] = map[string]any{}
		}
		r.apply(servers[name].(map[string]any), tool)
	}
	if len(servers) > 0 {
		all["mcp_servers"] = servers
	}
	return all, nil
}

// reviewed asks the program for the skills and hooks that it has read, and fails if one of the
// profile is missing. It returns the hooks to run, in the form in which the program stores reviewed
// hooks: the hooks of the profile and of a trusted workspace. The program lists no others.
func (c *conversation) reviewed(ctx context.Context, p *jsonrpc.Peer) (map[string]any, error) {
	where := map[string]any{"cwds": []string{c.session.Paths.Workspace}}
	if len(c.profile.Skills) > 0 {
		var list skillList
		if err := p.Call(ctx, jsonrpc.Request{Method: "skills/list", Params: where, Result: &list}); err != nil {
			return nil, openFailure(ctx, err)
		}
		if err := list.check(c.profile.Skills); err != nil {
			return nil, err
		}
	}
	hooks := len(c.profile.Hooks)
	if c.tools.noPatches {
		hooks++
	}
	if hooks == 0 && !c.session.Agent.TrustWorkspace {
		return nil, nil
	}
	var list hookList
	if err := p.Call(ctx, jsonrpc.Request{Method: "hooks/list", Params: where, Result: &list}); err != nil {
		return nil, openFailure(ctx, err)
	}
	return list.trust(hooks)
}

// skillList is the reply to skills/list.
type skillList struct {
	Data []struct {
		Skills []struct {
			Name string `json:"name"`
		} `json:"skills"`
		Errors []struct {
			Path    string `json:"path"`
			Message string `json:"message"`
		} `json:"errors"`
	} `json:"data"`
}

func (l skillList) check(skills []runnerscripts.Skill) error {
	has := map[string]bool{}
	why := map[string]string{}
	for _, d := range l.Data {
		for _, s := range d.Skills {
			has[s.Name] = true
		}
		for _, e := range d.Errors {
			why[path.Base(path.Dir(e.Path))] = e.Message
		}
	}
	for i, s := range skills {
		if !has[s.Name] {
			return agent.Invalid("correct profile.skills[%d], %q, which Codex does not take: %s", i, s.Name, why[s.Name])
		}
	}
	return nil
}

// hookList is the reply to hooks/list.
type hookList struct {
	Data []struct {
		Hooks []struct {
			Key    string `json:"key"`
			Source string `json:"source"`
			Hash   string `json:"currentHash"`
		} `json:"hooks"`
		Warnings []string        `json:"warnings"`
		Errors   json.RawMessage `json:"errors"`
	} `json:"data"`
}

// trust returns the state that makes all listed hooks run. profiles is the number of hooks in the
// profile.
func (l hookList) trust(profiles int) (map[string]any, error) {
	state := map[string]any{}
	for _, d := range l.Data {
		for _, h := range d.Hooks {
			state[h.Key] = map[string]any{"trusted_hash": h.Hash}
			if h.Source == "user" {
				profiles--
			}
		}
		if profiles > 0 {
			return nil, agent.Invalid("correct profile.hooks, of which Codex does not take %d: %s %s",
				profiles, strings.Join(d.Warnings, "; "), d.Errors)
		}
	}
	return state, nil
}
