package main

import (
	"encoding/json"
	"slices"
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
