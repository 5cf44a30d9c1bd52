package query

import (
	"strconv"
	"testing"

	rules "github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A request that cannot be read is asked, which reports it: no rule allows it.
func TestAMalformedRequestIsNotJudged(t *testing.T) {
	policy, err := rules.New(rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(rm *)"}}, rules.Place{})
	if err != nil {
		t.Fatal(err)
	}
	q := &Queries{Config: Config{Rules: policy, Names: policy}}
	for payload, want := range map[string]bool{
		`{"id":"1","toolCall":{"toolCallId":"1","name":"Bash","rawInput":{"command":"ls"}}}`: true,
		`{"id":"1","toolCall":7}`: false,
		`{"id":1}`:                false,
		`{`:                       false,
	} {
		v := q.judge(runnerscripts.Event{Type: runnerscripts.TypePermissionRequest, Payload: []byte(payload)}, &openRequest{})
		if judged := v != nil && v.effect == rules.Allow; judged != want {
			t.Errorf("%s: judged as %+v", payload, v)
		}
	}
}

// Answers beyond the limit hold once, and those from before hold on.
func TestTheAnswersOfASessionAreLimited(t *testing.T) {
	q := &Queries{}
	always := runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways}
	for n := range maxRemembered + 1 {
		_, scope := q.rememberLocked(strconv.Itoa(n), runnerscripts.PermissionRequest{}, runnerscripts.AllowAlways, always, "")
		if want := n < maxRemembered; want != (scope == runnerscripts.ScopeSession) {
			t.Fatalf("answer %d has the scope %s", n, scope)
		}
	}
	_, first := q.remembered("0")
	if _, last := q.remembered(strconv.Itoa(maxRemembered)); !first || last || len(q.answers) != maxRemembered {
		t.Errorf("%d are remembered; the first: %v, the last: %v", len(q.answers), first, last)
	}
}

// A call that does not say what it does has no key. An answer for the session holds once for it.
func TestAnAnswerToAnUnknownCallIsNotRemembered(t *testing.T) {
	req := runnerscripts.PermissionRequest{Options: []runnerscripts.PermissionOption{
		{OptionID: "once", Kind: runnerscripts.AllowOnce}, {OptionID: "always", Kind: runnerscripts.AllowAlways},
	}}
	for key, want := range map[string]string{"": runnerscripts.ScopeOnce, "k": runnerscripts.ScopeSession} {
		q := &Queries{}
		d, scope := q.rememberLocked(key, req, runnerscripts.AllowAlways, runnerscripts.PermissionDecision{OptionID: "always"}, "")
		_, known := q.remembered(key)
		if d.OptionID != "once" || scope != want || known != (key != "") {
			t.Errorf("key %q: option %s, scope %s, remembered %v", key, d.OptionID, scope, known)
		}
	}
}
