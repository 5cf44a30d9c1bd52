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
	if res := start(t, rs.PrintRecipe, "hal9000").end(exitFailed); res.Error == nil || res.Error.Code != rs.FailUnknownAgent {
		t.Errorf("an unknown agent: %+v", res.Error)
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
