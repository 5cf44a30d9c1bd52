package gemini

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestWhatTheProgramWouldLeaveOutIsRefusedByName(t *testing.T) {
	t.Parallel()
	text := func(path, text string) []runnerscripts.WorkspaceFile {
		return []runnerscripts.WorkspaceFile{{Path: path, Text: text}}
	}
	server := []runnerscripts.MCPServer{{Name: "x", Command: []string{"cat"}}}
	for name, tt := range map[string]struct {
		profile runnerscripts.Profile
		code    runnerscripts.FailureCode
		word    string
	}{
		"hook around tools": {
			runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "PreToolUse", Command: "x"}}},
			runnerscripts.FailUnsupported, "profile.hooks[0]",
		},
		"matcher": {
			runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "Stop", Command: "x", Matcher: "y"}}},
			runnerscripts.FailUnsupported, "profile.hooks[0].matcher",
		},
		"key of a command": {
			runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "x", Content: "x", Frontmatter: map[string]any{"model": "x"}}}},
			runnerscripts.FailUnsupported, "profile.commands[0].frontmatter.model",
		},
		"key of a subagent": {
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "x", Frontmatter: map[string]any{"max_turns": 3, "color": "red"}}}},
			runnerscripts.FailUnsupported, "profile.subagents[0].frontmatter.color",
		},
		"name of a subagent": {
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "Reviewer"}}},
			runnerscripts.FailInvalidRequest, `"Reviewer"`,
		},
		"marketplace": {
			runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "x", Marketplace: "a/b"}}},
			runnerscripts.FailUnsupported, "profile.plugins[0]",
		},
		"plugin without a manifest": {
			runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "x", Files: text("GEMINI.md", "x")}}},
			runnerscripts.FailInvalidRequest, manifestFile,
		},
		"plugin of another name": {
			runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "x", Files: text(manifestFile, `{"name":"y","version":"1"}`)}}},
			runnerscripts.FailInvalidRequest, manifestFile,
		},
		"variable": {
			runnerscripts.Profile{MCPServers: []runnerscripts.MCPServer{{Name: "x", Command: []string{"cat"}, Env: map[string]string{"Node_Options": "x"}}}},
			runnerscripts.FailUnsupported, "Node_Options",
		},
		"no tool": {
			runnerscripts.Profile{AllowedTools: []string{"write_file", "Bash(git log)"}},
			runnerscripts.FailInvalidRequest, "profile.allowed_tools[1]",
		},
		"server where the workspace has settings": {
			runnerscripts.Profile{MCPServers: server}, runnerscripts.FailUnsupported, "agent.trust_workspace",
		},
		"plugin with a server where the workspace has settings": {
			runnerscripts.Profile{Plugins: []runnerscripts.Plugin{{Name: "x", Files: text(manifestFile, `{"name":"x","version":"1","mcpServers":{"a":{}}}`)}}},
			runnerscripts.FailUnsupported, "agent.trust_workspace",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), programName)
			agenttest.WriteFile(t, filepath.Join(s.Paths.Workspace, ".gemini", "settings.json"), "{}")
			_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s, Profile: tt.profile})
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("setup: %v", err)
			}
			_, err = Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s, Profile: tt.profile}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("start: %v", err)
			}
		})
	}
}

func TestPromptOfACommand(t *testing.T) {
	t.Parallel()
	commands := []runnerscripts.SlashCommand{
		{Name: "fix", Content: "Fix $ARGUMENTS, all of $ARGUMENTS."},
		{Name: "test", Content: "Run the tests."},
	}
	for text, want := range map[string]string{
		"/fix the bug":        "Fix the bug, all of the bug.",
		" /fix\na\nb ":        "Fix a\nb, all of a\nb.",
		"/fix":                "Fix , all of .",
		"/test":               "Run the tests.",
		"/test twice":         "Run the tests.\n\ntwice",
		"/testing":            "/testing",
		"/memory show":        "/memory show",
		"say /fix":            "say /fix",
		"/fix $ARGUMENTS now": "Fix $ARGUMENTS now, all of $ARGUMENTS now.",
	} {
		if got := expand(commands, text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestRemovedProfileLeavesNothing(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	s.Agent.SystemPrompt = "Be brief."
	p := runnerscripts.Profile{
		Rules:       []runnerscripts.Rule{{Name: "r", Content: "Rule."}},
		Skills:      []runnerscripts.Skill{{Name: "s", Description: "d", Content: "c"}},
		Subagents:   []runnerscripts.Subagent{{Name: "a", Description: "d", Prompt: "p"}},
		Hooks:       []runnerscripts.Hook{{Event: "Stop", Command: "true"}},
		DeniedTools: []string{shellTool},
	}
	names := []string{
		memoryPath, skillsPath + "/s/SKILL.md", agentsPath + "/a.md", policiesPath + "/agentenv.toml",
		extensionPath + "/" + ownExtension + "/" + manifestFile,
	}
	if err := writeFiles(s, p); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(s.Paths.Home, name)); err != nil {
			t.Error(err)
		}
	}
	s.Agent.SystemPrompt = ""
	if err := writeFiles(s, runnerscripts.Profile{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(s.Paths.Home, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}
