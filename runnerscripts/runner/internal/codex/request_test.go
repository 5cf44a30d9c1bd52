package codex

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

func TestBadRequestsAreRefusedByName(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spoil func(*runnerscripts.Session)
		code  runnerscripts.FailureCode
		says  string
	}{
		"a session id that is no UUID": {
			func(s *runnerscripts.Session) { s.SessionID = "../../etc/passwd" }, runnerscripts.FailInvalidRequest, "session_id",
		},
		"a config that is no object": {
			func(s *runnerscripts.Session) { s.Agent.Config = []byte(`["turns"]`) }, runnerscripts.FailInvalidRequest, "agent.config",
		},
		"a setting that has a field": {
			func(s *runnerscripts.Session) { s.Agent.Config = []byte(`{"sandbox_mode":"read-only"}`) },
			runnerscripts.FailInvalidRequest, "agent.permission_mode",
		},
		"a folder for transcripts": {
			func(s *runnerscripts.Session) { s.Agent.Env = map[string]string{"CODEX_HOME": "/x"} },
			runnerscripts.FailInvalidRequest, "CODEX_HOME",
		},
		"a turn limit": {
			func(s *runnerscripts.Session) { s.Agent.MaxTurns = 3 }, runnerscripts.FailUnsupported, "agent.max_turns",
		},
		"a mode of another agent": {
			func(s *runnerscripts.Session) { s.Agent.PermissionMode = "acceptEdits" }, runnerscripts.FailInvalidRequest, "full-access",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), agentName)
			tt.spoil(&s)
			_, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("start: %v", err)
			}
			_, err = Driver{}.Setup(t.Context(), runnerscripts.SetupRequest{Session: s})
			if !agenttest.HasCode(err, tt.code) {
				t.Errorf("setup: %v", err)
			}
			_, err = Driver{}.Transcript(t.Context(), runnerscripts.TranscriptRequest{Session: s}, agenttest.NewRecorder())
			if !agenttest.HasCode(err, tt.code) {
				t.Errorf("transcript: %v", err)
			}
		})
	}
}

func TestRestoreRefusesWhatIsNoRollout(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), agentName)
	good := `{"type":"session_meta","payload":{"id":"` + fakeThread + `","timestamp":"2026-01-02T03:04:05Z"}}` + "\n"
	evil := strings.ReplaceAll(good, fakeThread, "../../../../evil")
	for name, tr := range map[string]runnerscripts.Transcript{
		"of another agent":       {Main: `{"type":"user"}` + "\n"},
		"no JSON":                {Main: "hello"},
		"a thread that is a way": {Main: evil},
		"a subagent of another name": {Main: good, Subagents: []runnerscripts.SubagentTranscript{
			{ID: "../evil", Transcript: good},
		}},
	} {
		if err := restore(s, tr); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := restore(s, runnerscripts.Transcript{}); err != nil {
		t.Errorf("an empty one: %v", err)
	}
}

func TestSettingsNameTheProviderOfTheEnvironment(t *testing.T) {
	t.Setenv(envKey, "")
	s := agenttest.NewSession(t, agent.NewUUID(), agentName)
	tests := map[string]struct {
		env      map[string]string
		config   string
		provider any
		base     string
	}{
		"none without a key":   {nil, "", nil, ""},
		"OpenAI with a key":    {map[string]string{envKey: "k"}, "", "openai-key", "https://api.openai.com/v1"},
		"another address":      {map[string]string{envKey: "k", envBaseURL: "http://127.0.0.1:1/v1"}, "", "openai-key", "http://127.0.0.1:1/v1"},
		"that of agent.config": {map[string]string{envKey: "k"}, `{"model_provider":"mine"}`, "mine", ""},
	}
	for name, tt := range tests {
		s.Agent.Env, s.Agent.Config = tt.env, json.RawMessage(tt.config)
		all, err := settings(s, runnerscripts.Profile{})
		if err != nil || all["model_provider"] != tt.provider {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		if tt.base == "" {
			continue
		}
		provider := all["model_providers"].(map[string]any)["openai-key"].(map[string]any)
		if provider["base_url"] != tt.base || provider["env_key"] != envKey {
			t.Errorf("%s: %v", name, provider)
		}
	}
}

func TestSettingsOfTheRequestAreMergedIntoThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), agentName)
	s.Agent.Env = map[string]string{envKey: "k"}
	s.Agent.Config = []byte(`{"model_providers":{"openai-key":{"request_max_retries":1},"other":{"name":"Other"}},"web_search":"disabled"}`)
	all, err := settings(s, runnerscripts.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	providers := all["model_providers"].(map[string]any)
	if p := providers["openai-key"].(map[string]any); p["env_key"] != envKey || p["request_max_retries"] != 1.0 {
		t.Errorf("the provider: %v", p)
	}
	if providers["other"] == nil || all["web_search"] != "disabled" {
		t.Errorf("settings: %v", all)
	}
}

func TestAgentGetsTheSessionsFolders(t *testing.T) {
	t.Setenv("CODEX_HOME", "/home/of/somebody/.codex")
	t.Setenv("HOME", "/home/of/somebody")
	s := agenttest.NewSession(t, agent.NewUUID(), agentName)
	env := environment(s)
	if got := child.Lookup(env, "CODEX_HOME"); got != s.Paths.Home+"/.codex" {
		t.Errorf("CODEX_HOME=%q", got)
	}
	if got := child.Lookup(env, "HOME"); got != s.Paths.Home {
		t.Errorf("HOME=%q", got)
	}
}
