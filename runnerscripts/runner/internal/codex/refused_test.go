package codex

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

func TestProfileThatCodexHasNothingForIsRefusedByName(t *testing.T) {
	t.Parallel()
	front := map[string]any{"color": "red"}
	server := func(m runnerscripts.MCPServer) runnerscripts.Profile {
		return runnerscripts.Profile{MCPServers: []runnerscripts.MCPServer{m}}
	}
	const unsupported, invalid = runnerscripts.FailUnsupported, runnerscripts.FailInvalidRequest
	for _, tt := range []struct {
		profile runnerscripts.Profile
		code    runnerscripts.FailureCode
		says    string
	}{
		{
			runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "a", Content: "b", Frontmatter: front}}},
			unsupported, "profile.commands[0].frontmatter.color",
		},
		{
			runnerscripts.Profile{Commands: []runnerscripts.SlashCommand{{Name: "a", Content: "b", Frontmatter: map[string]any{keyHint: 1}}}},
			invalid, "profile.commands[0].frontmatter.argument-hint",
		},
		{
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "a", Prompt: "b", Frontmatter: front}}},
			unsupported, "profile.subagents[0].frontmatter.color",
		},
		{
			runnerscripts.Profile{Subagents: []runnerscripts.Subagent{{Name: "a", Prompt: "b", Tools: []string{"Bash"}}}},
			unsupported, "profile.subagents[0].tools",
		},
		{runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "Notification", Command: "true"}}}, unsupported, "profile.hooks[0]"},
		{runnerscripts.Profile{AllowedTools: []string{"Read"}}, unsupported, "profile.allowed_tools[0]"},
		{runnerscripts.Profile{DeniedTools: []string{"Bash(git push)"}}, unsupported, "profile.denied_tools[0]"},
		{runnerscripts.Profile{DeniedTools: []string{"Bash(git * push *)"}}, unsupported, "profile.denied_tools[0]"},
		{runnerscripts.Profile{DeniedTools: []string{"Bash(*)"}}, unsupported, "profile.denied_tools[0]"},
		{runnerscripts.Profile{DeniedTools: []string{"apply_patch(src/*)"}}, unsupported, "profile.denied_tools[0]"},
		{runnerscripts.Profile{DeniedTools: []string{"mcp__nobody__add"}}, invalid, "mcp__nobody__add"},
		{server(runnerscripts.MCPServer{Name: "a.b", Command: []string{"true"}}), unsupported, "profile.mcp_servers[0]"},
		{
			server(runnerscripts.MCPServer{Name: "a", Command: []string{"true"}, Env: map[string]string{"A": "${UNSET_IN_TESTS}"}}),
			invalid, "UNSET_IN_TESTS",
		},
		{
			server(runnerscripts.MCPServer{Name: "a", URL: "http://x", Headers: map[string]string{"A": "b ${UNSET_IN_TESTS}"}}),
			invalid, "UNSET_IN_TESTS",
		},
	} {
		s := agenttest.NewSession(t, agent.NewUUID(), agentName)
		_, err := Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s, Profile: tt.profile})
		if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: set up: %v", tt.says, err)
		}
		_, err = Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s, Profile: tt.profile}, agenttest.NewRecorder())
		if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: start: %v", tt.says, err)
		}
	}
}

// Only the program checks some rules.
func TestProfileThatCodexDoesNotTakeFailsTheStart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		profile runnerscripts.Profile
		says    string
	}{
		"a pattern": {
			runnerscripts.Profile{Hooks: []runnerscripts.Hook{{Event: "Stop", Command: "true"}, {Event: "PreToolUse", Matcher: "[", Command: "true"}}},
			"profile.hooks",
		},
		"a name": {
			runnerscripts.Profile{Skills: []runnerscripts.Skill{
				{Name: "good", Description: "d", Content: "c"}, {Name: strings.Repeat("n", 100), Description: "d", Content: "c"},
			}},
			"profile.skills[1]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Profile = tt.profile
			if _, err := (Driver{}).Setup(t.Context(), runnerscripts.SetupRequest{Session: f.Session, Profile: f.Profile}); err != nil {
				t.Fatal(err)
			}
			_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session, Profile: f.Profile}, f.Out)
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("start: %v", err)
			}
		})
	}
}

func TestFilesOutsideOfTheWorkspaceAreNotChanged(t *testing.T) {
	t.Parallel()
	for name, outside := range map[string]bool{"refused": false, "asked for": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.AllowOutside = outside
			elsewhere := t.TempDir()
			if err := os.Symlink(elsewhere, f.WorkspaceFile("link")); err != nil {
				t.Fatal(err)
			}
			c := f.start()
			asked := 0
			for _, file := range []string{filepath.Join(elsewhere, "a.txt"), "link/b.txt", "../c.txt", "inside.txt"} {
				asked += f.promptAndAnswer(c, "write-file `"+file+"`", runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
			}
			want := map[bool]int{false: 1, true: 4}[outside]
			if asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
			for _, file := range []string{filepath.Join(elsewhere, "a.txt"), filepath.Join(elsewhere, "b.txt"), f.WorkspaceFile("../c.txt")} {
				if _, err := os.Stat(file); os.IsNotExist(err) == outside {
					t.Errorf("%s: %v", file, err)
				}
			}
			if !f.Exists("inside.txt") {
				t.Error("the file inside was not written")
			}
			told := 0
			for _, l := range agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog) {
				if strings.Contains(l.Message, "outside of the workspace") {
					told++
				}
			}
			if told != 4-want {
				t.Errorf("told %d times", told)
			}
			if told > 0 && !contains(f.bodies(0), "where this tool may not be used") {
				t.Error("the model is not told why")
			}
			f.SameAsTranscript()
		})
	}
}

func TestCommandsAreExpanded(t *testing.T) {
	t.Parallel()
	commands := []runnerscripts.SlashCommand{
		{Name: "fix", Content: "Fix $ARGUMENTS, only $ARGUMENTS."}, {Name: "fix-all", Content: "Fix all."},
	}
	for text, want := range map[string]string{
		"/fix the bug":   "Fix the bug, only the bug.",
		"/fix\nit ":      "Fix it, only it.",
		"/fix":           "Fix , only .",
		"/fix-all":       "Fix all.",
		"/fix-all now":   "Fix all.\n\nnow",
		"/fixed":         "/fixed",
		"/other":         "/other",
		"say /fix":       "say /fix",
		"/usr/bin is it": "/usr/bin is it",
	} {
		if got := expand(commands, text); got != want {
			t.Errorf("%q is expanded to %q", text, got)
		}
	}
}
