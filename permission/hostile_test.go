package permission

import (
	"strings"
	"testing"
)

// What the parser reads in deep recursion could overflow the stack, which ends the whole program.
func TestNestedScriptsAreAsked(t *testing.T) {
	p := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{"Bash(git push *)"}})
	for _, script := range []string{
		"$((" + strings.Repeat("(", 200<<10), strings.Repeat("(", maxScript), strings.Repeat("a[", maxBrackets+1), "true " + strings.Repeat("x", maxScript),
	} {
		if d := p.Decide(bash(t, script)); d.Effect != Ask || d.MayDeny == "" {
			t.Errorf("%.10s...: %s (%s)", script, d.Effect, d.Reason)
		}
	}
	for _, script := range []string{"true " + strings.Repeat("x", maxScript/2), "cat <<'E'\n" + strings.Repeat("([])", 1000) + "\nE"} {
		if d := p.Decide(bash(t, script)); d.Effect != Allow {
			t.Errorf("%.10s...: %s (%s)", script, d.Effect, d.Reason)
		}
	}
}

// A host may be in a word that the shell makes.
func TestAWordMayStandForAHost(t *testing.T) {
	fetch := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{"Fetch(evil.example)"}})
	for _, script := range []string{"curl example.com/x", "ls *", `echo "$U"`, "curl https://evil.example.com/"} {
		if d := fetch.Decide(bash(t, script)); d.Effect != Allow {
			t.Errorf("%q: %s (%s)", script, d.Effect, d.Reason)
		}
	}
	for _, script := range []string{"curl $U", "curl {evil,x}.example", "curl http://evil.{example,org}/", "xargs curl", "curl $(cat u)"} {
		if d := fetch.Decide(bash(t, script)); d.Effect != Ask || d.MayDeny == "" {
			t.Errorf("%q: %s (%s)", script, d.Effect, d.Reason)
		}
	}
}

// A deny rule counts as much for the agent's own name of a shell, and for "*", as for Bash.
func TestTheNameOfAShellHidesNothing(t *testing.T) {
	for script, deny := range map[string]string{
		"cat .en?":                 "Read(.env)",
		`cat "$F"`:                 "Read(.env)",
		"rm secre?/a":              "Write(secret/**)",
		"sh -c 'rm secre*/a'":      "Write(secret/**)",
		"curl $U":                  "Fetch(evil.example)",
		"git -C . push":            "Bash(git push *)",
		"$(echo git) push":         "Bash(git push *)",
		"cat <<E >secret/a\n\nE\n": "Write(secret/**)",
		"go test ./...":            "Write(secret/**)",
	} {
		want := newPolicy(t, Rules{Allow: []string{"Bash"}, Deny: []string{deny}}).Decide(bash(t, script))
		for _, name := range []string{"Bash", "run", "terminal", "exec_command", ""} {
			for _, allow := range []string{"*", "Bash", name} {
				if allow == "exec_command" || allow == "" { // the names of Bash are no rules
					continue
				}
				c := bash(t, script)
				c.Name, c.Kind = name, "execute"
				got := newPolicy(t, Rules{Allow: []string{allow}, Deny: []string{deny}}).Decide(c)
				if got.Effect == Allow && got.Rule == allow {
					got.Rule, got.Reason = want.Rule, want.Reason
				}
				if got != want {
					t.Errorf("%s, tool %q with %s allowed: %+v, want %+v", script, name, allow, got, want)
				}
			}
		}
	}
}
