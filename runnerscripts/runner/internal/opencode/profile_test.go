package opencode

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func rulesOf(t *testing.T, text string) ruleset {
	t.Helper()
	rules, err := parseRules(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestToolsOfAProfileComeBeforeOtherRules(t *testing.T) {
	const given = `{"bash":"allow","*":"ask","read":{"*":"allow","*.env":"ask"},"external_directory":"ask"}`
	tests := map[string]struct {
		profile runnerscripts.Profile
		want    string
	}{
		"nothing":                        {runnerscripts.Profile{}, given},
		"a tool":                         {runnerscripts.Profile{AllowedTools: []string{"read"}}, `{"bash":"allow","*":"ask","external_directory":"ask","read":"allow"}`},
		"a pattern":                      {runnerscripts.Profile{AllowedTools: []string{"bash(git log *)"}}, `{"*":"ask","read":{"*":"allow","*.env":"ask"},"external_directory":"ask","bash":{"*":"ask","git log *":"allow"}}`},
		"a tool that changes files":      {runnerscripts.Profile{AllowedTools: []string{"write"}}, `{"bash":"allow","*":"ask","read":{"*":"allow","*.env":"ask"},"external_directory":"ask","edit":"allow"}`},
		"denied comes before allowed":    {runnerscripts.Profile{AllowedTools: []string{"read(*.md)"}, DeniedTools: []string{"read(*.md)", "read(*.env)"}}, `{"bash":"allow","*":"ask","external_directory":"ask","read":{"*":"allow","*.md":"deny","*.env":"deny"}}`},
		"all tools of a server":          {runnerscripts.Profile{DeniedTools: []string{"calc_*"}}, `{"bash":"allow","*":"ask","read":{"*":"allow","*.env":"ask"},"external_directory":"ask","calc_*":"deny"}`},
		"all tools are not all places":   {runnerscripts.Profile{AllowedTools: []string{"*"}}, `{"bash":"allow","read":{"*":"allow","*.env":"ask"},"*":"allow","external_directory":"ask"}`},
		"places are those of the server": {runnerscripts.Profile{DeniedTools: []string{"external_directory"}}, `{"bash":"allow","*":"ask","read":{"*":"allow","*.env":"ask"},"external_directory":"deny"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rules, err := rulesOf(t, given).withTools(tt.profile)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(rawJSON(rules)); got != tt.want {
				t.Errorf("rules\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestToolsOfASubagentAskWhatTheOthersAsk(t *testing.T) {
	rules := rulesOf(t, permissions)
	rules, err := rules.withTools(runnerscripts.Profile{AllowedTools: []string{"bash(ls *)"}, DeniedTools: []string{"webfetch"}})
	if err != nil {
		t.Fatal(err)
	}
	rules, err = rules.only("tools", []string{"bash", "read", "webfetch"})
	const want = `{"*":"deny","bash":{"*":"ask","ls *":"allow"},"read":{"*":"allow","*.env":"ask","*.env.*":"ask","*.env.example":"allow"},` +
		`"webfetch":"deny","external_directory":"ask"}`
	if got := string(rawJSON(rules)); err != nil || got != want {
		t.Errorf("rules\n got %s, %v\nwant %s", got, err, want)
	}
}

func TestPatternsFitAsInTheProgram(t *testing.T) {
	for _, tt := range []struct {
		text, pattern string
		fits          bool
	}{
		{"git log -1", "git log *", true},
		{"git log", "git log *", true},
		{"git logs", "git log *", false},
		{"a.b", "a.b", true},
		{"axb", "a.b", false},
		{"axb", "a?b", true},
		{"a\nb", "a*", true},
		{"calc_add", "calc_*", true},
	} {
		if got := fits(tt.text, tt.pattern); got != tt.fits {
			t.Errorf("%q fits %q: %v", tt.text, tt.pattern, got)
		}
	}
}

func TestTextsOfTheConfigurationAreWhatTheySay(t *testing.T) {
	const text = `{env:HOME} {file:/etc/passwd} \{env:X} "${A}" $B ${1} äß`
	data := rawJSON(literal(text))
	var back string
	if err := json.Unmarshal(data, &back); err != nil || back != text || strings.Contains(string(data), "{") {
		t.Errorf("%s: %q, %v", data, back, err)
	}
	if got, want := string(rawJSON(expanded(`{env:X} "${A}${B_1}" $C ${D`))), `"\u007benv:X} \"{env:A}{env:B_1}\" $C $\u007bD"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestProfileIsAddedToTheUsersConfiguration(t *testing.T) {
	s := runnerscripts.Session{Paths: primitives.PathsIn("/s")}
	s.Agent.Config = []byte(`{"instructions":["own.md"],"plugin":["own"],"mcp":{"own":{"type":"local","command":["x"]}},"permission":{"bash":"deny"}}`)
	data, err := configuration(s, runnerscripts.Profile{
		Rules:        []runnerscripts.Rule{{Name: "r", Content: "x"}},
		Plugins:      []runnerscripts.Plugin{{Name: "p", Files: []runnerscripts.WorkspaceFile{{Path: "p.js"}, {Path: "lib/q.js"}}}},
		MCPServers:   []runnerscripts.MCPServer{{Name: "web", URL: "http://h/{env:X}", Headers: map[string]string{"K": "${V}"}}},
		AllowedTools: []string{"edit"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var conf settings
	if err := json.Unmarshal(data, &conf); err != nil {
		t.Fatal(err)
	}
	home := s.Paths.Home + "/.config/opencode/"
	for key, want := range map[string]string{
		"instructions": `["own.md","` + home + `rules/r.md"]`,
		"plugin":       `["own","` + home + `plugins/p/p.js"]`,
		"mcp":          `{"own":{"type":"local","command":["x"]},"web":{"type":"remote","url":"http://h/\u007benv:X}","headers":{"K":"{env:V}"},"oauth":false}}`,
		"permission":   `{"bash":"deny","edit":"ask"}`, // the workspace guard comes first
	} {
		if got := string(conf[key]); got != want {
			t.Errorf("%s:\n got %s\nwant %s", key, got, want)
		}
	}
}

func TestFileToolsAskForTheGuardAndTheRulesDecideThen(t *testing.T) {
	rules := rulesOf(t, `{"*":"allow","bash":"ask","read":{"*":"allow","*.env":"ask","*.key":"deny"},"edit":{"*":"ask","docs/*":"allow"}}`)
	var s runnerscripts.Session
	const want = `{"*":"allow","bash":"ask","read":{"*":"ask","*.env":"ask","*.key":"deny"},"glob":"ask","grep":"ask","list":"ask",` +
		`"edit":{"*":"ask","docs/*":"ask"}}`
	if got := string(rawJSON(rules.forProgram(s))); got != want {
		t.Errorf("rules\n got %s\nwant %s", got, want)
	}
	s.Agent.AllowOutside = true
	if got := string(rawJSON(rules.forProgram(s))); got != string(rawJSON(rules)) {
		t.Errorf("without the guard: %s", got)
	}
	for _, tt := range []struct {
		permission string
		targets    []string
		allowed    bool
	}{
		{"read", []string{"a.txt"}, true},
		{"read", []string{"a.txt", "b/.env"}, false},
		{"edit", []string{"docs/a.md"}, true},
		{"edit", []string{"a.md"}, false},
		{"grep", []string{"x"}, true},
		{"grep", nil, false},
	} {
		if got := rules.allow(tt.permission, tt.targets); got != tt.allowed {
			t.Errorf("%s %q: %v", tt.permission, tt.targets, got)
		}
	}
}

func TestWhatTheProgramHasNothingForIsRefusedByName(t *testing.T) {
	file := []runnerscripts.WorkspaceFile{{Path: "a.js"}, {Path: "b.js"}}
	server := func(value string) []runnerscripts.MCPServer {
		return []runnerscripts.MCPServer{{Name: "calc", Command: []string{"x"}, Env: map[string]string{"K": "${" + value + "}"}}}
	}
	subagent := runnerscripts.Subagent{Name: "s", Description: "d", Prompt: "p"}
	with := func(change func(*runnerscripts.Subagent)) []runnerscripts.Subagent {
		s := subagent
		change(&s)
		return []runnerscripts.Subagent{s}
	}
	tests := map[string]struct {
		profile runnerscripts.Profile
		code    runnerscripts.FailureCode
	}{
		"profile.subagents[0].frontmatter.colour": {runnerscripts.Profile{Subagents: with(func(s *runnerscripts.Subagent) { s.Frontmatter = map[string]any{"colour": "red"} })}, runnerscripts.FailUnsupported},
		"profile.subagents[0].model":              {runnerscripts.Profile{Subagents: with(func(s *runnerscripts.Subagent) { s.Model = "sonnet" })}, runnerscripts.FailInvalidRequest},
		"profile.subagents[0].tools[1]":           {runnerscripts.Profile{Subagents: with(func(s *runnerscripts.Subagent) { s.Tools = []string{"read", "bash(ls)"} })}, runnerscripts.FailInvalidRequest},
		"rename profile.subagents[0]":             {runnerscripts.Profile{Subagents: with(func(s *runnerscripts.Subagent) { s.Name = "build" })}, runnerscripts.FailInvalidRequest},
		"profile.commands[0].frontmatter.tools":   {runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "c", Content: "x", Frontmatter: map[string]any{"tools": "x"}}}}, runnerscripts.FailUnsupported},
		"profile.commands[0].frontmatter.model":   {runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "c", Content: "x", Frontmatter: map[string]any{"model": 7}}}}, runnerscripts.FailInvalidRequest},
		"profile.hooks[0]":                        {runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "Stop", Command: "x"}}}, runnerscripts.FailUnsupported},
		"profile.hooks[0].matcher":                {runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: hookBefore, Command: "x", Matcher: "(bash"}}}, runnerscripts.FailInvalidRequest},
		"profile.plugins[0]":                      {runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "p", Marketplace: "npm"}}}, runnerscripts.FailUnsupported},
		"profile.plugins[0].files":                {runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "p", Files: file}}}, runnerscripts.FailInvalidRequest},
		"profile.allowed_tools[0]":                {runnerscripts.Profile{AllowedTools: []string{"bash("}}, runnerscripts.FailInvalidRequest},
		"agent.allow_outside":                     {runnerscripts.Profile{AllowedTools: []string{"external_directory"}}, runnerscripts.FailInvalidRequest},
		"profile.denied_tools[0]":                 {runnerscripts.Profile{DeniedTools: []string{"webfetch(http://x)"}}, runnerscripts.FailInvalidRequest},
		"profile.mcp_servers[0]":                  {runnerscripts.Profile{MCPServers: []runnerscripts.MCPServer{{Name: "own", Command: []string{"x"}}}}, runnerscripts.FailInvalidRequest},
		"set UNSET in agent.env":                  {runnerscripts.Profile{MCPServers: server("UNSET")}, runnerscripts.FailInvalidRequest},
		"another value for QUOTED":                {runnerscripts.Profile{MCPServers: server("QUOTED")}, runnerscripts.FailInvalidRequest},
	}
	for where, tt := range tests {
		t.Run(where, func(t *testing.T) {
			f := newFake(t, "version "+testedVersion)
			f.Session.Agent.Env["QUOTED"] = `the"secret`
			f.Session.Agent.Config = []byte(`{"mcp":{"own":{}}}`)
			_, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: tt.profile})
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), where) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestSetupReplacesTheLastProfile(t *testing.T) {
	f := newFake(t, "version "+testedVersion)
	setup := func(p runnerscripts.Profile) {
		t.Helper()
		if _, err := f.driver.Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: p}); err != nil {
			t.Fatal(err)
		}
	}
	f.Session.Agent.SystemPrompt = "x"
	setup(newServers(t).withoutVariables())
	home := func(name string) string { return filepath.Join(f.Session.Paths.Home, name) }
	written := []string{
		ruleFile("style"), skillsDir + "/pdf/SKILL.md", skillsDir + "/pdf/more/notes.md", programDir + "/commands/greet.md",
		programDir + "/agents/helper.md", pluginDir("shouter") + "/shout.js", programDir + "/plugins/agentenv-hooks.js",
	}
	for _, name := range append(written, ".config/agentenv/opencode/system-prompt.md") {
		if _, err := os.Stat(home(name)); err != nil {
			t.Error(err)
		}
	}
	info, err := os.Stat(configFile(f.Session))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the configuration, which may have keys: %v, %v", info, err)
	}
	f.Session.Agent.SystemPrompt = ""
	setup(runnerscripts.Profile{})
	for _, name := range append(written, ".config/agentenv/opencode/system-prompt.md") {
		if _, err := os.Stat(home(name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// withoutVariables returns the profile without the parts that need environment variables.
func (p servers) withoutVariables() runnerscripts.Profile {
	all := p.profile()
	all.MCPServers = nil
	all.AllowedTools = nil
	return all
}
