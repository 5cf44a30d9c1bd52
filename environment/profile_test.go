package environment_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

// folder writes files, by their paths, into a new folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAFolderOfClaudeCodeIsAProfile(t *testing.T) {
	dir := folder(t, map[string]string{
		"profile.yaml":                       "name: Reviewer\nmodel: opus\nsystem_prompt: Be short.\n",
		"AGENTS.md":                          "Use tabs.\n",
		"CLAUDE.md":                          "@AGENTS.md\n",
		".claude/rules/go.md":                "Wrap errors.\n",
		".claude/commands/git/fix.md":        "---\ndescription: Fix it\nargument-hint: '[issue]'\n---\nFix $ARGUMENTS.\n",
		".claude/agents/critic.md":           "---\nname: critic\ndescription: Finds faults\ntools: Read, Grep\nmodel: haiku\n---\n\nBe hard.\n",
		".claude/skills/pdf/SKILL.md":        "---\nname: pdf\ndescription: >\n  Reads\n  PDFs\nallowed-tools: Read\n---\nSee ref/x.md.\n",
		".claude/skills/pdf/ref/x.md":        "x",
		".claude/settings.json":              `{"permissions":{"allow":["Bash(go test *)"],"deny":["WebFetch"]},"hooks":{"Stop":[{"hooks":[{"type":"command","command":"make"}]}]}}`,
		".mcp.json":                          `{"mcpServers":{"files":{"command":"fs","args":["-r"],"env":{"A":"b"}},"web":{"type":"http","url":"https://x.test/mcp"}}}`,
		"docs/of-the-folder-are-not-read.md": "no",
	})
	got, err := environment.LoadProfile(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := environment.Profile{
		Name: "Reviewer", Model: "opus", SystemPrompt: "Be short.",
		Rules:     []rs.Rule{{Name: "AGENTS", Content: "Use tabs.\n"}, {Name: "go", Content: "Wrap errors.\n"}},
		Commands:  []rs.SlashCommand{{Name: "git-fix", Description: "Fix it", Content: "Fix $ARGUMENTS.\n", Frontmatter: map[string]any{"argument-hint": "[issue]"}}},
		Subagents: []rs.Subagent{{Name: "critic", Description: "Finds faults", Tools: []string{"Read", "Grep"}, Model: "haiku", Prompt: "Be hard.\n", Frontmatter: map[string]any{}}},
		Skills: []rs.Skill{{
			Name: "pdf", Description: "Reads PDFs\n", Content: "See ref/x.md.\n", Frontmatter: map[string]any{"allowed-tools": "Read"},
			Files: []rs.WorkspaceFile{{Path: "ref/x.md", Content: []byte("x"), Mode: 0o644}},
		}},
		AllowedTools: []string{"Bash(go test *)"}, DeniedTools: []string{"WebFetch"},
		Hooks: []rs.Hook{{Event: "Stop", Command: "make"}},
		MCPServers: []rs.MCPServer{
			{Name: "files", Command: []string{"fs", "-r"}, Env: map[string]string{"A": "b"}}, {Name: "web", URL: "https://x.test/mcp"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestAProfileOfAConfigurationMayBeAPath(t *testing.T) {
	dir := folder(t, map[string]string{
		"env.yaml":            "agent: {name: script}\nprofile: ./reviewer\n",
		"reviewer/CLAUDE.md":  "Use tabs.",
		"inline.yaml":         "agent: {name: script}\nprofile: {rules: [{name: r, content: x}]}\n",
		"wrong.yaml":          "profile: {rule: []}\n",
		"reviewer.json":       `{"model":"m"}`,
		"file.yaml":           "profile: reviewer.json\n",
		"missing.yaml":        "profile: nosuch\n",
		"wrong/profile.json":  `{"skills":[{"name":"../x","description":"d","content":"c"}]}`,
		"wrong-profile.yaml":  "profile: ./wrong\n",
		"nothing/README":      "x",
		"nothing-in-it.yaml":  "profile: ./nothing\n",
		"bad/skills/a/x.md":   "x",
		"no-skill.yaml":       "profile: ./bad\n",
		"front/commands/a.md": "---\ndescription: [\n---\nx",
		"front.yaml":          "profile: ./front\n",
		"set/settings.json":   `{"cleanupPeriodDays": 3}`,
		"settings.yaml":       "profile: ./set\n",
		"hook/settings.json":  `{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"x","async":true}]}]}}`,
		"hook.yaml":           "profile: ./hook\n",
		"mcp/.mcp.json":       `{"mcpServers":{"a":{"command":"x","cwd":"/srv"}}}`,
		"mcp.yaml":            "profile: ./mcp\n",
		"args/.mcp.json":      `{"mcpServers":{"a":{"url":"http://x.test","args":["y"]}}}`,
		"args.yaml":           "profile: ./args\n",
		"stdio/.mcp.json":     `{"mcpServers":{"a":{"type":"stdio","url":"http://x.test"}}}`,
		"stdio.yaml":          "profile: ./stdio\n",
	})
	for name, want := range map[string]string{"env.yaml": "Use tabs.", "inline.yaml": "x"} {
		cfg, err := environment.LoadConfig(filepath.Join(dir, name))
		if err != nil || len(cfg.Profile.Rules) != 1 || cfg.Profile.Rules[0].Content != want {
			t.Errorf("%s: %+v, %v", name, cfg.Profile, err)
		}
	}
	if cfg, err := environment.LoadConfig(filepath.Join(dir, "file.yaml")); err != nil || cfg.Profile.Model != "m" {
		t.Errorf("%+v, %v", cfg.Profile, err)
	}
	if _, err := environment.LoadConfig(filepath.Join(dir, "missing.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a profile that is not there: %v", err)
	}
	for name, says := range map[string]string{
		"wrong.yaml":         "unknown key profile.rule",
		"wrong-profile.yaml": "profile.skills[0] a name",
		"nothing-in-it.yaml": "nothing of a profile",
		"no-skill.yaml":      "skills/a: invalid configuration: it has no SKILL.md",
		"front.yaml":         "front/commands/a.md: invalid configuration: correct its frontmatter",
		"settings.yaml":      "set/settings.json: invalid configuration: unknown key cleanupPeriodDays",
		"hook.yaml":          "hook/settings.json: invalid configuration: unknown key hooks.Stop[0].hooks[0].async",
		"mcp.yaml":           "mcp/.mcp.json: invalid configuration: unknown key mcpServers.a.cwd",
		"args.yaml":          `args/.mcp.json: invalid configuration: give the server "a" a command for its args`,
		"stdio.yaml":         `stdio/.mcp.json: invalid configuration: give the server "a" of the type stdio a command`,
	} {
		_, err := environment.LoadConfig(filepath.Join(dir, name))
		if !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAProfileWithALinkThatLeadsOutIsRefused(t *testing.T) {
	outside := folder(t, map[string]string{"profile.yaml": "model: m", "a/SKILL.md": "x", "x.md": "x"})
	for link, target := range map[string]string{
		"profile.yaml": "profile.yaml", "skills": ".", "skills/a/SKILL.md": "a/SKILL.md", "commands/team": ".",
		"rules": ".", "CLAUDE.md": "x.md", ".claude": ".",
	} {
		t.Run(link, func(t *testing.T) {
			dir := folder(t, map[string]string{"AGENTS.md": "Use tabs."})
			name := filepath.Join(dir, link)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(filepath.Join(outside, target), name)); err != nil {
				t.Fatal(err)
			}
			if p, err := environment.LoadProfile(dir); !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), name) {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

func TestAProfileDoesNotFollowLinksOutOfItsFolder(t *testing.T) {
	secret := filepath.Join(folder(t, map[string]string{"secret": "s3cret"}), "secret")
	dir := folder(t, map[string]string{"skills/a/SKILL.md": "---\nname: a\ndescription: d\n---\nx"})
	if err := os.Symlink(secret, filepath.Join(dir, "skills/a/data")); err != nil {
		t.Fatal(err)
	}
	if p, err := environment.LoadProfile(dir); !errors.Is(err, environment.ErrConfig) || !strings.Contains(err.Error(), "skills/a") {
		t.Errorf("%+v, %v", p, err)
	}
}
