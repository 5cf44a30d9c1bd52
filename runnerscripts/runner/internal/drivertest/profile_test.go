package drivertest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// profileRules returns the rules about the fields of a profile and an agent, each with the feature
// that it shows.
func profileRules() []rule {
	list := []rule{
		{name: "a system prompt reaches the model", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureSystemPrompt}, check: reaches("SYSTEM-PROMPT")},
		{name: "rules reach the model", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureRules}, check: reaches("TEXT-OF-A-RULE")},
		{name: "skills are offered to the model", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureSkills}, check: reaches("USE-OF-A-SKILL")},
		{name: "plugins reach the model", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeaturePlugins}, check: reaches(pluginText)},
		{name: "subagents are offered to the model", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureSubagents}, check: subagents},
		{name: "commands are expanded", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureCommands}, check: commands},
		{name: "denied tools are not on offer", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureDeniedTools}, check: denied},
		{name: "a server with a command is called", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureMCPStdio}, check: func(r *rig) { called(r, 0) }},
		{name: "a server with a URL is called", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureMCPHTTP}, check: func(r *rig) { called(r, 1) }},
		{name: "allowed tools are not asked for", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureAllowedTools}, check: allowed},
		{name: "hooks run", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureHooks}, check: hooks},
		{name: "a limit of turns ends the query", group: profiled, features: []runnerscripts.Feature{runnerscripts.FeatureMaxTurns}, check: endsEarly},
	}
	for i, rule := range list {
		list[i].check = func(r *rig) {
			if r.shared == nil {
				r.everything()
			}
			rule.check(r)
		}
	}
	return list
}

// everything sets up a session that uses everything that the agent supports.
func (r *rig) everything() {
	r.Helper()
	r.real()
	if r.supports(runnerscripts.FeatureSystemPrompt) {
		r.Session.Agent.SystemPrompt = "SYSTEM-PROMPT"
	}
	if r.supports(runnerscripts.FeatureMaxTurns) {
		r.Session.Agent.MaxTurns = 8 // no other rule needs so many
	}
	r.servers = []*agenttest.MCP{agenttest.StdioMCP(r.whole, "calc"), agenttest.HTTPMCP(r.whole, "web")}
	for _, field := range r.fields() {
		if r.supports(field.feature) {
			field.fill(&r.Profile)
		}
	}
}

// field fills one field of a profile.
type field struct {
	feature runnerscripts.Feature
	fill    func(*runnerscripts.Profile)
}

func (r *rig) fields() []field {
	type profile = runnerscripts.Profile
	return []field{
		{runnerscripts.FeatureRules, func(p *profile) { p.Rules = []runnerscripts.Rule{{Name: "one", Content: "TEXT-OF-A-RULE"}} }},
		{runnerscripts.FeatureSkills, func(p *profile) {
			p.Skills = []runnerscripts.Skill{{Name: "release", Description: "USE-OF-A-SKILL", Content: "Tag, then push."}}
		}},
		{runnerscripts.FeatureCommands, func(p *profile) {
			p.Commands = []runnerscripts.SlashCommand{{Name: "greet", Description: "Greets.", Content: "plain-text for $ARGUMENTS"}}
		}},
		{runnerscripts.FeatureSubagents, func(p *profile) {
			p.Subagents = []runnerscripts.Subagent{{Name: "reviewer", Description: "USE-OF-A-SUBAGENT", Prompt: "You review."}}
		}},
		{runnerscripts.FeatureHooks, func(p *profile) {
			p.Hooks = []runnerscripts.Hook{{Event: r.hook, Command: "touch " + filepath.Join(r.Session.Paths.Workspace, "hooked")}}
		}},
		{runnerscripts.FeatureMCPStdio, func(p *profile) {
			server := r.servers[0].Server
			server.Install = `rm "$(mktemp)"` // an installation may need temporary files
			p.MCPServers = append(p.MCPServers, server)
		}},
		{runnerscripts.FeatureMCPHTTP, func(p *profile) { p.MCPServers = append(p.MCPServers, r.servers[1].Server) }},
		{runnerscripts.FeaturePlugins, func(p *profile) { p.Plugins = []runnerscripts.Plugin{r.plugin} }},
		{runnerscripts.FeatureAllowedTools, func(p *profile) { p.AllowedTools = []string{named(r.allow, "calc"), named(r.allow, "web")} }},
		{runnerscripts.FeatureDeniedTools, func(p *profile) { p.DeniedTools = []string{r.denied} }},
		{runnerscripts.FeatureBudget, func(p *profile) { p.BudgetUSD = 100 }},
	}
}

// named inserts the name of an MCP server into a format.
func named(format, server string) string { return strings.Replace(format, "%s", server, 1) }

// reaches returns a check that a request to the model contains the text.
func reaches(text string) func(*rig) {
	return func(r *rig) {
		c := r.talk()
		if len(r.API.Requests()) == 0 {
			r.prompt(c, "plain-text")
		}
		if !r.sent(text) {
			r.Errorf("the model was not sent %s", text)
		}
	}
}

func subagents(r *rig) {
	if c := r.talk(); r.search != "" {
		r.prompt(c, r.search)
	}
	reaches("USE-OF-A-SUBAGENT")(r)
}

func commands(r *rig) {
	r.prompt(r.talk(), "/greet Ada and Bob")
	if !r.sent("plain-text for Ada and Bob") {
		r.Error("the model was not sent the command")
	}
}

func denied(r *rig) {
	r.prompt(r.talk(), "plain-text")
	if tools := r.lastRequest().Tools; slices.Contains(tools, r.denied) {
		r.Errorf("tools on offer: %q", tools)
	}
}

// called checks that the agent calls the tool of a server. It allows the call if the agent asks.
func called(r *rig, n int) {
	c, server := r.talk(), r.servers[n]
	e, _ := r.unasked(c, r.call(server.Server.Name))
	if e.err != nil || len(server.Calls()) == 0 {
		r.Errorf("%d calls, error %v", len(server.Calls()), e.err)
	}
	if last := r.lastRequest(); len(last.Results) != 1 || !strings.Contains(last.Results[0], "the sum is 5") {
		r.Errorf("the model was sent the results %q", last.Results)
	}
}

// call returns the prompt that calls the tool of a server.
func (r *rig) call(server string) string {
	return fmt.Sprintf("call-tool `%s {\"a\":2,\"b\":3}`", named(r.tool, server))
}

func allowed(r *rig) {
	c := r.talk()
	for _, server := range r.servers {
		if e, asked := r.unasked(c, r.call(server.Server.Name)); asked || e.err != nil {
			r.Errorf("%s: asked: %v, error %v", server.Server.Name, asked, e.err)
		}
	}
}

func hooks(r *rig) {
	c := r.talk()
	if e, _ := r.unasked(c, r.call("calc")); e.err != nil || !r.Exists("hooked") {
		r.Errorf("the hook ran: %v, error %v", r.Exists("hooked"), e.err)
	}
}

// profileMutants returns mutants that ignore one field each.
func profileMutants() []mutant {
	forgets := func(rule, says string, forget func(*runnerscripts.Session, *runnerscripts.Profile)) mutant {
		return mutant{name: "not so: " + rule, rule: rule, says: says, broken: broken{profile: forget}}
	}
	type session = runnerscripts.Session
	type profile = runnerscripts.Profile
	plugins := forgets("plugins reach the model", "not sent "+pluginText, func(_ *session, p *profile) { p.Plugins = nil })
	plugins.subject = claudeSubject
	return []mutant{
		forgets("a system prompt reaches the model", "not sent SYSTEM-PROMPT", func(s *session, _ *profile) { s.Agent.SystemPrompt = "" }),
		forgets("rules reach the model", "not sent TEXT-OF-A-RULE", func(_ *session, p *profile) { p.Rules = nil }),
		forgets("skills are offered to the model", "not sent USE-OF-A-SKILL", func(_ *session, p *profile) { p.Skills = nil }),
		plugins,
		forgets("subagents are offered to the model", "not sent USE-OF-A-SUBAGENT", func(_ *session, p *profile) { p.Subagents = nil }),
		forgets("commands are expanded", "not sent the command", func(_ *session, p *profile) { p.Commands = nil }),
		forgets("denied tools are not on offer", "tools on offer", func(_ *session, p *profile) { p.DeniedTools = nil }),
		forgets("a server with a command is called", "0 calls", func(_ *session, p *profile) { p.MCPServers, p.AllowedTools = p.MCPServers[1:], nil }),
		forgets("a server with a URL is called", "0 calls", func(_ *session, p *profile) { p.MCPServers, p.AllowedTools = p.MCPServers[:1], nil }),
		forgets("allowed tools are not asked for", "asked: true", func(_ *session, p *profile) { p.AllowedTools = nil }),
		forgets("hooks run", "the hook ran: false", func(_ *session, p *profile) { p.Hooks = nil }),
	}
}
