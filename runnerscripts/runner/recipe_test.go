package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestRecipeIsPrintedAsTheDataOfAResult(t *testing.T) {
	recipe := func(agent string) rs.Recipe {
		t.Helper()
		var r rs.Recipe
		if res := start(t, rs.PrintRecipe, agent).end(exitOK); !res.OK || json.Unmarshal(res.Data, &r) != nil || r.Agent != agent {
			t.Fatalf("%s: %+v, data %s", agent, res, res.Data)
		}
		return r
	}
	if r := recipe("claude"); r.Program != "claude" || !slices.Contains(r.NPM, "@anthropic-ai/claude-code@"+r.Version) {
		t.Errorf("claude needs %+v", r)
	}
	if r := recipe("script"); r.Program != "" || len(r.NPM)+len(r.Debian) > 0 {
		t.Errorf("the scripted agent needs %+v", r)
	}
	if r := recipe("acp:goose"); r.Program != "" || !slices.Equal(r.Supports, recipe("acp").Supports) {
		t.Errorf("an agent of the ACP registry needs %+v", r)
	}
	for _, unknown := range []string{"hal9000", "acp:", "acp:../../x", "acp:a/b"} {
		if res := start(t, rs.PrintRecipe, unknown).end(exitFailed); res.Error == nil || res.Error.Code != rs.FailUnknownAgent {
			t.Errorf("the unknown agent %q: %+v", unknown, res.Error)
		}
	}
}

func TestAnAgentOfTheRegistryContinuesTheConversationOfAnother(t *testing.T) {
	s := newSandbox(t)
	s.agent = rs.Agent{Name: "acp:goose"}
	session := s.session()
	session.Launch = &rs.Launch{Program: "sh", Advice: "install it"}
	said := `{"time":"2026-11-28T06:00:00Z","type":"user_message_chunk","payload":{"block_id":"1","content":{"type":"text","text":"hi"}}}` + "\n"
	for from, want := range map[string]rs.TranscriptRestored{"acp:goose": {}, "acp:kimi": {From: "acp:kimi", Way: rs.RestoredSummary}} {
		p := start(t, rs.SetupSession)
		p.send(rs.SetupRequest{Session: session, Transcript: &rs.Transcript{Agent: from, Main: said}})
		var data rs.SetupData
		if res := p.end(exitOK); json.Unmarshal(res.Data, &data) != nil || data.Restored != want {
			t.Errorf("of %s: %+v, %s", from, res.Error, res.Data)
		}
	}
}

func TestSetupRefusesAnAgentThatIsTooOld(t *testing.T) {
	for version, code := range map[string]rs.FailureCode{"2.1.197": rs.FailAgentOld, "2.1.250": "", "99.0.0": ""} {
		s := newSandbox(t)
		program := filepath.Join(t.TempDir(), "claude")
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho '"+version+" (Claude Code)'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.agent = rs.Agent{Name: "claude", Command: []string{program}}
		want := exitOK
		if code != "" {
			want = exitFailed
		}
		p := start(t, rs.SetupSession)
		p.send(rs.SetupRequest{Session: s.session()})
		res := p.end(want)
		if code == "" && !res.OK || code != "" && (res.Error == nil || res.Error.Code != code || !strings.Contains(res.Error.Message, "2.1.250") ||
			!strings.HasSuffix(res.Error.Message, "with 'envctl agents install claude ID' or, from Go, with Environment.InstallAgent")) {
			t.Errorf("%s: %+v", version, res.Error)
		}
	}
}
