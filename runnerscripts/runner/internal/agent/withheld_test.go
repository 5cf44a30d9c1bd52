package agent_test

import (
	"slices"
	"testing"

	rs "github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// unasking is an agent with tools about which it does not ask.
type unasking struct{ agent.Driver }

func (unasking) Unasked() map[string]string {
	return map[string]string{"google_web_search": "WebSearch", "write_todos": "write_todos"}
}

// What a rule denies as a whole, and an agent would do without a question, the agent does not offer.
func TestToolsThatRulesDenyAreWithheld(t *testing.T) {
	for _, tt := range []struct {
		denies, profile, want []string
	}{
		{nil, []string{"web_fetch"}, []string{"web_fetch"}},
		{[]string{"WebSearch"}, []string{"web_fetch"}, []string{"web_fetch", "google_web_search"}},
		{[]string{"*todo*", "Web*"}, nil, []string{"google_web_search", "write_todos"}},
		{[]string{"*"}, []string{"write_todos"}, []string{"write_todos", "google_web_search"}},
		{[]string{"google_web_search", "todos"}, nil, nil}, // no names in rules
	} {
		p := rs.Profile{DeniedTools: tt.profile}
		if got := agent.Withheld(unasking{}, rs.Session{Denies: tt.denies}, p); !slices.Equal(got, tt.want) {
			t.Errorf("%q beside %q withhold %q, want %q", tt.denies, tt.profile, got, tt.want)
		}
	}
	p := rs.Profile{DeniedTools: []string{"x"}}
	if got := agent.Withheld(struct{ agent.Driver }{}, rs.Session{Denies: []string{"*"}}, p); !slices.Equal(got, p.DeniedTools) {
		t.Errorf("an agent that always asks withholds %q", got)
	}
}
