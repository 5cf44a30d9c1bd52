package permission

import (
	"slices"
	"strings"
	"testing"
)

// A user who reads the suggestion can give it as it is, and it allows the call. It is no wider than what a user would write.
func TestSuggestedRulesAllowTheCall(t *testing.T) {
	for _, c := range []struct {
		call Call
		want string
	}{
		{call("Bash", "execute", `{"command":"cat a b"}`), "Bash(cat *)"},
		{call("Bash", "execute", `{"command":"cat"}`), "Bash(cat *)"},
		{call("shell", "", `{"command":["bash","-lc","cat a | sort -u"]}`), "Bash(cat *) Bash(sort *)"},
		{call("Bash", "execute", `{"command":"cat a; cat b; echo c"}`), "Bash(cat *)"},
		{call("Bash", "execute", `{"command":"git status -s"}`), "Bash(git status *)"},
		{call("Bash", "execute", `{"command":"/usr/bin/git push"}`), "Bash(/usr/bin/git push *)"},
		{call("Bash", "execute", `{"command":"git -C x push"}`), "Bash(git *)"},
		{call("Bash", "execute", `{"command":"cat status"}`), "Bash(cat *)"},
		{call("Bash", "execute", `{"command":"sudo cat a"}`), "Bash(sudo *) Bash(cat *)"},
		{call("Bash", "execute", `{"command":"make >log"}`), "Bash(make *) Write(log)"},
		{call("Bash", "execute", `{"command":"sh -e test.sh"}`), "Bash"},
		{call("Bash", "execute", `{"command":"cat a; $X"}`), "Bash"},
		{call("Bash", "execute", `{"command":"'my program' a"}`), "Bash"},
		{call("Bash", "execute", `{}`), "Bash"},
		{call("Write", "edit", `{"file_path":"/work/ws/src/a"}`), "Write(src/a)"},
		{call("apply_patch", "edit", `{}`, "a", "/tmp/b"), "Write(a) Write(/tmp/b)"},
		{call("apply_patch", "edit", `{}`), "Write"},
		{call("Read", "read", `{"file_path":"/etc/hosts"}`), "Read(/etc/hosts)"},
		{call("WebFetch", "fetch", `{"url":"https://A.example.com/x"}`), "Fetch(a.example.com)"},
		{call("mcp_github_get_issue", "", `{}`), "mcp__github__get_issue"},
		{call("WebSearch", "", `{}`), "WebSearch"},
		{call("AskUserQuestion", "", `{}`), ""},
		{call("my tool", "", `{}`), ""}, // no rule can name it
		{Call{}, ""},
	} {
		got := newPolicy(t, Rules{}).Suggest(c.call)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %s: %q, want %q", c.call.Name, c.call.Input, got, c.want)
		}
		if d := newPolicy(t, Rules{Allow: got}).Decide(c.call); c.want != "" && d.Effect != Allow {
			t.Errorf("%s %s: with %q it is %+v", c.call.Name, c.call.Input, got, d)
		}
		for _, rule := range got {
			rest := slices.DeleteFunc(slices.Clone(got), func(r string) bool { return r == rule })
			if d := newPolicy(t, Rules{Allow: rest}).Decide(c.call); d.Effect == Allow {
				t.Errorf("%s %s: %q is not necessary", c.call.Name, c.call.Input, rule)
			}
		}
	}
}

// A rule that denies a tool as a whole says so, in each of the rules that narrow; a portable tool and those of servers are asked about.
func TestToolsThatAreDeniedAsAWhole(t *testing.T) {
	p := newPolicy(t, Rules{
		Allow: []string{"Skill"}, Ask: []string{"Task"}, Deny: []string{"WebSearch", "Bash", "Edit", "Read(.env)", "mcp__*", "WebSearch", "Cron*"},
	})
	p, err := p.Narrow(Rules{Deny: []string{"TodoWrite", "*"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.DeniedTools(), " "); got != "WebSearch Cron* TodoWrite *" {
		t.Errorf("they are %s", got)
	}
}
