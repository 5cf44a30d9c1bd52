package claude

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

func TestFileTruncatedByACrashDoesNotBreakTheSession(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end   func(transcript string) string // returns the file after a crash
		texts int                            // number of texts that the model then receives
	}{
		"without a message": {func(string) string { return `{"type":"queue-operation","operation":"enqueue"}` + "\n" }, 1},
		"empty":             {func(string) string { return "" }, 1},
		"half a line":       {func(s string) string { return s + `{"type":"user","mess` }, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.Start()
			f.Prompt(c, "plain-text")
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			before, _ := f.Transcript()
			file, err := mainTranscript(f.Session)
			if err != nil {
				t.Fatal(err)
			}
			agenttest.WriteFile(t, file, tt.end(before.Main))
			f.Prompt(f.Start(), "remember")
			if got := f.LastRequest().Texts; len(got) != tt.texts {
				t.Errorf("the model was sent %q", got)
			}
			after, events := f.Transcript()
			if tt.texts > 1 && !strings.HasPrefix(after.Main, before.Main) {
				t.Error("the transcript was lost")
			}
			if users := agenttest.Payloads[runnerscripts.ContentChunk](t, events.All(), runnerscripts.TypeUserMessage); len(users) != tt.texts {
				t.Errorf("prompts in the transcript: %v", users)
			}
		})
	}
}

func TestWorkspaceIsTrustedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(map[bool]string{true: "trusted", false: "untrusted"}[trusted], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.TrustWorkspace = trusted
			f.evilWorkspace()
			own := agenttest.StdioMCP(t, "own")
			f.Profile = runnerscripts.Profile{
				Hooks:      []runnerscripts.Hook{{Event: "SessionStart", Command: "touch profile-hook-ran"}},
				MCPServers: []runnerscripts.MCPServer{own.Server},
			}
			f.SetUp()
			f.Prompt(f.Start(), "plain-text")
			if f.Exists("evil-hook-ran") != trusted {
				t.Errorf("the workspace's hook ran: %v", !trusted)
			}
			if f.Exists("evil-mcp-ran") != trusted {
				t.Errorf("the workspace's MCP server ran: %v", !trusted)
			}
			if has := strings.Contains(string(f.LastRequest().Body), "EVIL-COMMAND"); has != trusted {
				t.Errorf("the workspace's command is there: %v", has)
			}
			if !f.Exists("profile-hook-ran") || len(own.Requests()) == 0 {
				t.Errorf("the profile's hook ran: %v; its server got %v", f.Exists("profile-hook-ran"), own.Requests())
			}
		})
	}
}

func TestRawLinesComeOnRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Raw = true
	c := f.Start()
	f.Prompt(c, "plain-text")
	var types []string
	for _, l := range agenttest.Payloads[head](t, f.Out.All(), runnerscripts.TypeRaw) {
		types = append(types, l.Type)
	}
	if all := strings.Join(types, " "); !strings.HasPrefix(all, "control_response") || !strings.Contains(all, "result") {
		t.Errorf("raw lines: %s", all)
	}
}

func TestModelThatDoesNotStartIsAnErrorWithWhatItSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "no-such-mode"
	_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session}, f.Out)
	if !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "no-such-mode") {
		t.Errorf("error %v", err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*runnerscripts.Session){
		"a session id that is no UUID": func(s *runnerscripts.Session) { s.SessionID = "../../etc/passwd" },
		"a config of another agent":    func(s *runnerscripts.Session) { s.Agent.Config = []byte(`{"turns":[]}`) },
		"a folder for transcripts":     func(s *runnerscripts.Session) { s.Agent.Env = map[string]string{"CLAUDE_CONFIG_DIR": "/x"} },
		"a negative turn limit":        func(s *runnerscripts.Session) { s.Agent.MaxTurns = -1 },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			s := agenttest.NewSession(t, agent.NewUUID(), programName)
			spoil(&s)
			_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("start: %v", err)
			}
			_, err = Driver{}.Transcript(t.Context(), runnerscripts.TranscriptRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("transcript: %v", err)
			}
		})
	}
}

func TestRestoreRefusesNamesThatLeaveTheFolder(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), programName)
	for _, id := range []string{"", "../../evil", "a/b", "."} {
		err := restore(s, runnerscripts.Transcript{
			Main: "{}\n", Subagents: []runnerscripts.SubagentTranscript{{ID: id, Transcript: "x"}},
		})
		if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

func TestAgentGetsTheSandboxsEnvironmentAndItsOwnOverIt(t *testing.T) {
	t.Setenv("OF_THE_SANDBOX", "kept")
	t.Setenv("OF_BOTH", "sandbox")
	t.Setenv("HOME", "/home/of/somebody")
	t.Setenv("CLAUDE_CONFIG_DIR", "/home/of/somebody/.claude")
	paths := primitives.PathsIn("/s")
	env := environment(runnerscripts.Session{Paths: paths, Agent: runnerscripts.Agent{Env: map[string]string{"OF_BOTH": "agent"}}})
	for key, want := range map[string]string{
		"OF_THE_SANDBOX": "kept", "OF_BOTH": "agent", "HOME": paths.Home, "CLAUDE_CONFIG_DIR": paths.Home + "/.claude",
	} {
		if got := child.Lookup(env, key); got != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	for i := 1; i < len(env); i++ {
		if env[i-1] >= env[i] {
			t.Errorf("%q and %q are not in order, or twice", env[i-1], env[i])
		}
	}
}
