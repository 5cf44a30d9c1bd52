package query

import (
	"strconv"
	"strings"
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
		v := q.judge(&runnerscripts.Event{Type: runnerscripts.TypePermissionRequest, Payload: []byte(payload)}, &openRequest{})
		if judged := v != nil && v.effect == rules.Allow; judged != want {
			t.Errorf("%s: judged as %+v", payload, v)
		}
	}
}

// A request says which rule may deny the call, and loses nothing else.
func TestARequestNamesTheRuleThatMayDenyIt(t *testing.T) {
	policy, err := rules.New(rules.Rules{Deny: []string{"Bash(git push *)"}}, rules.Place{})
	if err != nil {
		t.Fatal(err)
	}
	q := &Queries{Config: Config{Rules: policy, Names: policy}}
	for script, want := range map[string]string{"git -C . push": "Bash(git push *)", "make": ""} {
		ev := runnerscripts.Event{Payload: []byte(` {"id":"1","toolCall":{"toolCallId":"1","name":"Bash","rawInput":{"command":"` + script + `"}},"_meta":{"x":[1]}}`)}
		q.judge(&ev, &openRequest{})
		req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		if err != nil || req.MayDeny != want || req.ToolCall.Name != "Bash" || !strings.Contains(string(ev.Payload), `"_meta":{"x":[1]}`) {
			t.Errorf("%s: %s, %v", script, ev.Payload, err)
		}
	}
}

func TestARequestSaysThatItIsDecided(t *testing.T) {
	policy, err := rules.New(rules.Rules{Allow: []string{"Bash(make)"}, Deny: []string{"Bash(rm *)"}}, rules.Place{})
	if err != nil {
		t.Fatal(err)
	}
	q := &Queries{Config: Config{Rules: policy, Names: policy}}
	for script, want := range map[string]bool{"make": true, "rm x": true, "go test": false} {
		ev := runnerscripts.Event{Payload: []byte(`{"id":"1","toolCall":{"toolCallId":"1","name":"Bash","rawInput":{"command":"` + script + `"}}}`)}
		verdict := q.judge(&ev, &openRequest{})
		if req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev); err != nil || req.Decided != want || (verdict != nil) != want {
			t.Errorf("%s: %s, %v", script, ev.Payload, err)
		}
	}
}

// A script does not speak for the host: what it says of rules is left out, however it writes it.
func TestARequestOfAScriptNamesNoRule(t *testing.T) {
	policy, err := rules.New(rules.Rules{Deny: []string{"Bash(git push *)"}}, rules.Place{})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []*Queries{{}, {Config: Config{Rules: policy, Names: policy}}} {
		q.Names = policy
		for _, field := range []string{`"mayDeny":"x"`, `"MAYDENY":"x"`, `"mayDeny":"x","mayDeny":""`, `"decided":true`, `"Decided":true`} {
			ev := runnerscripts.Event{Payload: []byte(`{"id":"1","toolCall":{"toolCallId":"1","name":"Bash","rawInput":{"command":"make"}},` + field + `}`)}
			q.judge(&ev, &openRequest{})
			if strings.Contains(strings.ToLower(string(ev.Payload)), "maydeny") || strings.Contains(strings.ToLower(string(ev.Payload)), "decided") || !strings.Contains(string(ev.Payload), `"make"`) {
				t.Errorf("%s, with rules: %v: %s", field, q.Rules != nil, ev.Payload)
			}
		}
	}
}

// An earlier answer does not hold when a further rule may deny the call, and goes on to hold otherwise.
func TestAnAnswerDoesNotHoldForALaterDenyRule(t *testing.T) {
	ask := rules.Rules{Ask: []string{"Bash(git *)"}}
	for _, c := range []struct {
		then rules.Rules
		same bool
	}{
		{ask, true},
		{rules.Rules{Ask: ask.Ask, Deny: []string{"Bash(make)"}}, true},
		{rules.Rules{Ask: ask.Ask, Deny: []string{"Bash(git push *)"}}, false},
	} {
		var keys []string
		for _, r := range []rules.Rules{ask, c.then} {
			policy, err := rules.New(r, rules.Place{})
			if err != nil {
				t.Fatal(err)
			}
			q, open := &Queries{Config: Config{Rules: policy, Names: policy}}, &openRequest{}
			q.judge(&runnerscripts.Event{Payload: []byte(`{"id":"1","toolCall":{"toolCallId":"1","name":"Bash","rawInput":{"command":"git -C . push"}}}`)}, open)
			keys = append(keys, open.key)
		}
		if same := keys[0] == keys[1]; same != c.same || keys[0] == "" {
			t.Errorf("%+v: the keys %q", c.then, keys)
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

// A held call is judged by its command, whatever name its agent has for the tool.
func TestAHeldCallIsJudgedByItsCommand(t *testing.T) {
	for _, c := range []struct {
		rules       rules.Rules
		tool, input string
		want        rules.Effect
	}{
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, "run_command", `{"command":"git push"}`, rules.Deny},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, "run_command", `{"cmd":["git","push"]}`, rules.Deny},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, "run_command", `{"Command":"git push"}`, rules.Ask},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, "run_command", `{"command":"git pull"}`, rules.Allow},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, "look", `{"at":"git push"}`, rules.Allow},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Write(a)"}}, "Write", `{"file_path":"a","command":"create"}`, rules.Deny},
		{rules.Rules{Mode: rules.ModeAuto, Deny: []string{"run_command"}}, "run_command", `{"command":"make"}`, rules.Deny},
		{rules.Rules{Mode: rules.ModeAsk, Allow: []string{"run_command"}}, "run_command", `{"command":"make"}`, rules.Allow},
		{rules.Rules{Mode: rules.ModeAsk, Allow: []string{"run_command"}, Deny: []string{"Bash(make *)"}}, "run_command", `{"command":"make"}`, rules.Deny},
		{rules.Rules{Mode: rules.ModeAsk, Allow: []string{"run_command"}}, "other", `{"command":"make"}`, rules.Ask},
	} {
		policy, err := rules.New(c.rules, rules.Place{})
		if err != nil {
			t.Fatal(err)
		}
		q := &Queries{Config: Config{Rules: policy, Names: policy}}
		if d := policy.Decide(CallOf(q.heldCall("id", c.tool, []byte(c.input)))); d.Effect != c.want {
			t.Errorf("%+v, %s %s: %s, not %s (%s)", c.rules, c.tool, c.input, d.Effect, c.want, d.Reason)
		}
	}
}

// An agent may understand an input that is no JSON, and run the command in it.
func TestAHeldCallWithAMalformedInputMayBeACommand(t *testing.T) {
	policy, err := rules.New(rules.Rules{Mode: rules.ModeAuto, Deny: []string{"Bash(git push *)"}}, rules.Place{})
	if err != nil {
		t.Fatal(err)
	}
	q := &Queries{Config: Config{Rules: policy, Names: policy}}
	for input, want := range map[string]rules.Effect{
		`{"command":"git push",}`: rules.Ask, `"git push"`: rules.Ask, `["git push"]`: rules.Ask, `{"x":1`: rules.Ask, `{"command":"git push"}`: rules.Deny,
		``: rules.Allow, ` `: rules.Allow, `null`: rules.Allow, `{}`: rules.Allow, `{"x":1}`: rules.Allow,
	} {
		if d := policy.Decide(CallOf(q.heldCall("", "terminal", valid([]byte(input))))); d.Effect != want || (d.MayDeny != "") != (want == rules.Ask) {
			t.Errorf("%s: %+v, not %s", input, d, want)
		}
	}
}
