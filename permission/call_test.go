package permission

import "testing"

// No rule is refused that a call could match: a tool with a name that rules have in another case is the tool of these rules.
func TestAToolOfAnyCaseHasTheRulesOfItsName(t *testing.T) {
	for _, c := range []struct {
		deny string
		call Call
	}{
		{"Fetch", call("fetch", "other", `{"url":"https://a.example"}`)},
		{"Fetch(a.example)", call("fetch", "", `{"url":"https://a.example"}`)},
		{"Fetch", call("fetch", "execute", `{"command":"curl a"}`)},
		{"Bash(curl *)", call("fetch", "execute", `{"command":"curl a"}`)},
		{"Write(a)", call("WRITE", "other", `{"path":"a"}`)},
		{"Edit(a)", call("EDIT", "", `{"path":"a"}`)},
	} {
		if d := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{c.deny}}).Decide(c.call); d.Effect != Deny {
			t.Errorf("%s, %s %s: %+v", c.deny, c.call.Name, c.call.Input, d)
		}
	}
}
