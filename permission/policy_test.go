package permission

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func call(name, kind, input string, paths ...string) Call {
	return Call{Name: name, Kind: kind, Input: json.RawMessage(input), Paths: paths}
}

// The same act has the same portable name, and the same decision, whichever agent does it.
func TestAllAgentsHaveTheSameNames(t *testing.T) {
	p := newPolicy(t, Rules{
		Allow: []string{"Bash(git *)", "Edit(src/**)", "WebFetch(*.example.com)", "mcp__github__get_*"},
		Deny:  []string{"Bash(git push *)", "Write(src/secret/**)", "mcp__github__delete_*", "Fetch(bad.example.com)"},
	})
	for want, calls := range map[Effect][]Call{
		Allow: {
			call("Bash", "execute", `{"command":"git status"}`),
			call("commandExecution", "read", `{"command":"git status","cwd":"/work/ws"}`),
			call("shell", "", `{"command":["bash","-lc","git status"]}`),
			call("exec_command", "", `{"cmd":"git status"}`),
			call("run_shell_command", "execute", `{"command":"git status","dir_path":"x"}`),
			call("bash", "execute", `{"command":"git status","description":"d"}`),
			call("", "execute", `{"command":"git status"}`),
			call("run", "execute", `{"command":["git","status"]}`),
			call("Write", "edit", `{"file_path":"/work/ws/src/a","content":""}`),
			call("NotebookEdit", "edit", `{"notebook_path":"/work/ws/src/a"}`),
			call("fileChange", "edit", `{"changes":[{"path":"/work/ws/src/a","kind":{"type":"add"}}]}`),
			call("apply_patch", "edit", `{}`, "/work/ws/src/a"),
			call("replace", "edit", `{"file_path":"src/a"}`),
			call("edit", "edit", `{"filePath":"/work/ws/src/a"}`),
			call("", "move", ``, "/work/ws/src/a", "/work/ws/src/b"),
			call("WebFetch", "fetch", `{"url":"https://docs.example.com/x"}`),
			call("webfetch", "fetch", `{"url":"https://DOCS.example.com.:8443/x"}`),
			call("", "fetch", `{"url":"http://docs.example.com"}`),
			call("mcp__github__get_issue", "", `{}`),
			call("github/get_issue", "", `{}`),
			call("github_get_issue", "", `{}`),
			call("mcp_github_get_issue", "", `{}`),
			call("Read", "read", `{"file_path":"/work/ws/x"}`),
			call("read_file", "read", `{"absolute_path":"/work/ws/x"}`),
			call("Grep", "search", `{"pattern":"x"}`),
		},
		Deny: {
			call("Bash", "execute", `{"command":"git push"}`),
			call("commandExecution", "read", `{"command":"git push"}`),
			call("shell", "", `{"command":["git","push"]}`),
			call("shell", "", `{"command":["bash","-lc","git push"]}`),
			call("run_shell_command", "execute", `{"command":"git push"}`),
			call("Write", "edit", `{"file_path":"/work/ws/src/../src/secret/a"}`),
			call("fileChange", "edit", `{"changes":[{"path":"/work/ws/src/a","kind":{"type":"update","move_path":"/work/ws/src/secret/a"}}]}`),
			call("apply_patch", "edit", `{}`, "src/a", "src/secret/a"),
			call("github/delete_repo", "", `{}`),
			call("mcp_github_delete_repo", "", `{}`),
			call("WebFetch", "", `{"url":"https://docs.example.com@bad.example.com/"}`),
		},
		Ask: {
			call("Bash", "execute", `{"command":"make"}`),
			call("Bash", "execute", `{"command":7}`),
			call("Bash", "execute", `{}`),
			call("Bash", "execute", `nonsense`),
			call("Bash", "execute", `{"command":"make","Command":"git status"}`),
			call("Bash", "execute", `{"command":"git status","cmd":"make"}`),
			call("Write", "edit", `{"file_path":"/etc/x","File_Path":"src/a"}`),
			call("", "execute", ``),
			call("Write", "edit", `{"file_path":"/work/ws/srcs/a"}`),
			call("Write", "edit", `{"file_path":"/work/ws/src/../../ws2/src/a"}`),
			call("Write", "edit", `{"file_path":"~/src/a"}`),
			call("Write", "edit", `{"file_path":"src\\..\\a"}`),
			call("Write", "edit", `{}`),
			call("apply_patch", "edit", `{}`, "/work/ws/src/a", "/etc/passwd"),
			call("WebFetch", "fetch", `{"url":"https://example.com/"}`),
			call("WebFetch", "fetch", `{"url":"https://docs.example.com.evil.org/"}`),
			call("WebFetch", "fetch", `{"url":"https://evil.org\\@docs.example.com/"}`),
			call("WebFetch", "fetch", `{"url":"file://docs.example.com/x"}`),
			call("web_fetch", "fetch", `{"prompt":"read https://docs.example.com"}`),
			call("Read", "read", `{"file_path":"/etc/passwd"}`),
			call("mcp__github__set", "", `{}`),
			call("AskUserQuestion", "", `{"questions":[]}`),
			call("Skill", "", `{}`),
		},
	} {
		for _, c := range calls {
			if d := p.Decide(c); d.Effect != want {
				t.Errorf("%s %s %s %v: %s, not %s (%s)", c.Name, c.Kind, c.Input, c.Paths, d.Effect, want, d.Reason)
			}
		}
	}
}

// A server whose name begins like another one's differs from it.
func TestAToolBelongsToTheServerWithTheLongestName(t *testing.T) {
	p, err := New(Rules{Allow: []string{"mcp__a__*"}, Deny: []string{"mcp__a_b__*"}}, Place{Servers: []string{"a", "a_b"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Effect{"a_get": Allow, "a_b_get": Deny, "a_b__get": Deny, "mcp_a_b_get": Deny, "mcp_a_get": Allow} {
		if d := p.Decide(call(name, "", `{}`)); d.Effect != want {
			t.Errorf("%s: %s, not %s (%s)", name, d.Effect, want, d.Reason)
		}
	}
}

// An earlier answer is one to the rule that asks, so a rule that narrows is the one that a decision names.
func TestADecisionNamesTheRuleThatNarrows(t *testing.T) {
	git := call("Bash", "", `{"command":"git -C . push"}`)
	for name, c := range map[string]struct {
		own, limits Rules
		call        Call
		want        Decision
	}{
		"the mode asks too": {Rules{}, Rules{Deny: []string{"Bash(git push *)"}}, git, Decision{Effect: Ask, Rule: "Bash(git push *)"}},
		"a rule asks too":   {Rules{Ask: []string{"Bash"}}, Rules{Deny: []string{"Bash(git push *)"}}, git, Decision{Effect: Ask, Rule: "Bash(git push *)"}},
		"by its mode":       {Rules{Ask: []string{"Bash"}}, Rules{Mode: ModeAsk}, git, Decision{Effect: Ask, Rule: "Bash"}},
		"a question": {
			Rules{},
			Rules{Ask: []string{"AskUserQuestion"}},
			call("AskUserQuestion", "", `{"questions":[]}`),
			Decision{Effect: Ask, Rule: "AskUserQuestion", Question: true},
		},
	} {
		p, err := newPolicy(t, c.own).Narrow(c.limits)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Decide(c.call); got.Effect != c.want.Effect || got.Rule != c.want.Rule || got.Question != c.want.Question {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAKeyIsThatOfTheSameCall(t *testing.T) {
	p := newPolicy(t, Rules{})
	for _, c := range []struct {
		a, b Call
		same bool
	}{
		{call("Bash", "", `{"command":"a","description":"x"}`), call("Bash", "", `{"command":"a","description":"y"}`), true},
		{call("Bash", "", `{"command":"a $X"}`), call("Bash", "", `{"command":"a $Y"}`), false},
		{call("Bash", "", `{"command":"a"}`), call("Bash", "", `{"command":"a","cwd":"/tmp"}`), false},
		{call("Bash", "", `{"command":"a"}`), call("Bash", "", `{"command":"a","dangerouslyDisableSandbox":true}`), false},
		{call("shell", "", `{"command":["a"]}`), call("shell", "", `{"command":["a"],"with_escalated_permissions":true}`), false},
		{call("Bash", "", `{"command":"a","timeout":1}`), call("Bash", "", `{"timeout":2,"command":"a"}`), true},
		{call("Grep", "", `{"pattern":"a"}`), call("Grep", "", `{"pattern":"b"}`), true},
		{call("Grep", "", `{"pattern":"a"}`), call("Grep", "", `{"pattern":"a","glob":".env"}`), false},
		{call("Write", "", `{"file_path":"a","content":"1"}`), call("Edit", "", `{"file_path":"/work/ws/a","content":"2"}`), true},
		{call("Write", "", `{"file_path":"a"}`), call("Write", "", `{"file_path":"b"}`), false},
		{call("Write", "", `{"file_path":"~a"}`), call("Write", "", `{"file_path":"~b"}`), false},
		{call("Write", "", `{"file_path":"a"}`), call("Read", "", `{"file_path":"a"}`), false},
		{call("WebFetch", "", `{"url":"https://a.b/x"}`), call("WebFetch", "", `{"url":"https://a.b/y"}`), true},
		{call("mcp__a__b", "", `{"x":1}`), call("a/b", "", `{"x":2}`), true},
		{call("Skill", "", `{"x":1}`), call("Skill", "", `{"x":2}`), false},
		{call("Bash", "", `x`), call("Bash", "", `y`), false},
		{call("Bash", "", `{"command":"a"}`), call("Bash", "", `{"command":"b","command":"a"}`), false},
		{call("run", "execute", `{"command":"a"}`), call("kill", "execute", `{"command":"a"}`), false},
		{call("", "edit", ``, "~a"), call("", "edit", ``, "~b"), false},
	} {
		if same := p.Key(c.a) == p.Key(c.b); same != c.same {
			t.Errorf("%s %s and %s %s are the same: %v", c.a.Name, c.a.Input, c.b.Name, c.b.Input, same)
		}
	}
	if key := p.Key(call("", "execute", "")); key != "" {
		t.Errorf("commands that are not shown have the key %s", key)
	}
}

func TestAModeDecidesWhatNoRuleMatches(t *testing.T) {
	calls := map[string]Call{
		"command": call("Bash", "", `{"command":"make"}`), "opaque": call("Bash", "", `{"command":"$X"}`),
		"write": call("Write", "", `{"file_path":"a/b"}`), "git": call("Write", "", `{"file_path":"a/.git/hooks/x"}`),
		"outside": call("Write", "", `{"file_path":"/etc/x"}`), "read": call("Read", "", `{"file_path":"a"}`), "read outside": call("Read", "", `{"file_path":"/etc/x"}`),
		"other": call("mcp__x__y", "", `{}`), "question": call("AskUserQuestion", "", `{}`),
		"linked": call("Read", "", `{"file_path":"/proc/self/cwd/ok"}`),
		"denied": call("Bash", "", `{"command":"rm x"}`), "asked": call("Bash", "", `{"command":"mv x y"}`), "allowed": call("Write", "", `{"file_path":"ok"}`),
	}
	for mode, want := range map[Mode]map[string]Effect{
		ModeAsk:  {"read": Allow, "allowed": Allow, "denied": Deny},
		"":       {"read": Allow, "allowed": Allow, "denied": Deny},
		ModeEdit: {"read": Allow, "write": Allow, "allowed": Allow, "denied": Deny},
		ModePlan: {"read": Allow, "write": Deny, "git": Deny, "outside": Deny, "allowed": Deny, "denied": Deny},
		ModeAuto: {"linked": Ask, "command": Allow, "write": Allow, "git": Allow, "outside": Allow, "read": Allow, "read outside": Allow, "other": Allow, "allowed": Allow, "denied": Deny},
	} {
		p := newPolicy(t, Rules{Mode: mode, Allow: []string{"Write(ok)"}, Ask: []string{"Bash(mv *)"}, Deny: []string{"Bash(rm *)"}})
		for name, c := range calls {
			w := want[name]
			if w == "" {
				w = Ask
			}
			if d := p.Decide(c); d.Effect != w {
				t.Errorf("mode %q: %s: %s, not %s (%s)", mode, name, d.Effect, w, d.Reason)
			}
		}
	}
	// Without a rule that denies or asks there is nothing that a command could hide.
	if d := newPolicy(t, Rules{Mode: ModeAuto}).Decide(calls["opaque"]); d.Effect != Allow {
		t.Errorf("auto without rules: %s (%s)", d.Effect, d.Reason)
	}
	// Else it is asked, and the reason says what cannot be judged.
	for _, rules := range []Rules{{}, {Mode: ModeAuto, Deny: []string{"mcp__x__*"}}} {
		if d := newPolicy(t, rules).Decide(calls["opaque"]); d.Effect != Ask || strings.Contains(d.Reason, "mode") {
			t.Errorf("%+v: %s (%s)", rules, d.Effect, d.Reason)
		}
	}
	if d := newPolicy(t, Rules{Allow: []string{"Bash"}}).Decide(calls["opaque"]); d.Effect != Allow {
		t.Errorf("every command is allowed: %s (%s)", d.Effect, d.Reason)
	}
	if d := newPolicy(t, Rules{Allow: []string{"Bash"}, Deny: []string{"Write(x)"}}).Decide(calls["opaque"]); d.Effect != Ask {
		t.Errorf("every command is allowed, a file is not: %s (%s)", d.Effect, d.Reason)
	}
}

func TestTheStricterRuleWins(t *testing.T) {
	for _, c := range []struct {
		rules  Rules
		script string
		want   Decision
	}{
		{Rules{Allow: []string{"Bash(a *)"}, Ask: []string{"Bash(a *)"}, Deny: []string{"Bash(a *)"}}, "a b", Decision{Effect: Deny, Rule: "Bash(a *)"}},
		{Rules{Allow: []string{"Bash(a *)"}, Ask: []string{"Bash(a b)"}}, "a b", Decision{Effect: Ask, Rule: "Bash(a b)"}},
		{Rules{Allow: []string{"Bash(a *)"}, Deny: []string{"Bash"}}, "a b", Decision{Effect: Deny, Rule: "Bash"}},
		{Rules{Mode: ModeAuto, Deny: []string{"*"}}, "a b", Decision{Effect: Deny, Rule: "*"}},
		{Rules{Mode: ModeAuto, Deny: []string{"Bash(*)"}}, "$X", Decision{Effect: Deny, Rule: "Bash(*)"}},
		{Rules{Allow: []string{"Bash(a *)"}}, "a b; a c", Decision{Effect: Allow, Rule: "Bash(a *)"}},
		{Rules{Allow: []string{"Bash(a *)"}}, "a b; c", Decision{Effect: Ask}},
		{Rules{Allow: []string{"Bash(a *)"}, Deny: []string{"Bash(c)"}}, "b; c; a", Decision{Effect: Deny, Rule: "Bash(c)"}},
		{Rules{Allow: []string{"Bash(a *)"}}, "env -i a b", Decision{Effect: Allow, Rule: "Bash(a *)"}},
		{Rules{Mode: ModeAuto, Deny: []string{"Bash(env *)"}}, "env a", Decision{Effect: Deny, Rule: "Bash(env *)"}},
		{Rules{Mode: ModeAuto, Deny: []string{"Bash(sh *)"}}, "/bin/sh -c a", Decision{Effect: Deny, Rule: "Bash(sh *)"}},
		{Rules{Allow: []string{"Bash(rm *)"}, Deny: []string{"Bash(rm -rf *)"}}, "rm x", Decision{Effect: Allow, Rule: "Bash(rm *)"}},
		{Rules{Allow: []string{"Bash(rm *)"}, Deny: []string{"Bash(rm -rf *)"}}, "rm -r -f x", Decision{Effect: Ask, Rule: "Bash(rm -rf *)"}},
		{Rules{Allow: []string{"Bash(git *)"}, Deny: []string{"Bash(git push --force *)"}}, "git push x --force", Decision{Effect: Ask, Rule: "Bash(git push --force *)"}},
		{Rules{Allow: []string{"Bash(git *)"}, Deny: []string{"Bash(git push --force *)"}}, "git push x", Decision{Effect: Allow, Rule: "Bash(git *)"}},
		{Rules{Allow: []string{"Bash(git * --stat *)"}}, "git log -3 --stat", Decision{Effect: Allow, Rule: "Bash(git * --stat *)"}},
		{Rules{Allow: []string{"Bash(npm run test*)"}}, "npm run test:all", Decision{Effect: Allow, Rule: "Bash(npm run test*)"}},
		{Rules{Allow: []string{"Bash(npm run test*)"}}, "npm run x test", Decision{Effect: Ask}},
	} {
		d := newPolicy(t, c.rules).Decide(bash(t, c.script))
		if d.Effect != c.want.Effect || d.Rule != c.want.Rule || d.Reason == "" {
			t.Errorf("%+v: %q: %+v, not %+v", c.rules, c.script, d, c.want)
		}
	}
}

func TestARuleThatDoesNotParseSaysWhereAndWhy(t *testing.T) {
	for _, c := range []struct {
		text   string
		column int
		says   string
	}{
		{"", 1, "names no tool"},
		{"(x)", 1, "names no tool"},
		{"Ba sh", 1, "no name of a tool"},
		{"Bash(git *", 11, `closing ")"`},
		{"Bash()", 6, "empty"},
		{"Bash(git:*)", 9, `write "Bash(git *)"`},
		{"Bash(git status; ls)", 16, "one rule for each command"},
		{"Bash(a\nb)", 7, "one line"},
		{"Write(../x)", 7, `".."`},
		{"Write(~/x)", 7, "home folder"},
		{"Read(src/)", 10, `write "Read(src/**)"`},
		{"Read(a[)", 6, "malformed"},
		{"Fetch(https://example.com)", 7, "no host"},
		{"Fetch(a.*.com)", 7, "no host"},
		{"mcp__x__y(a)", 10, "takes no parentheses"},
		{"bash", 1, `write "Bash"`},
		{"BASH(git *)", 1, `write "Bash"`},
		{"run_shell_command", 1, `write "Bash"`},
		{"Grep", 1, `write "Read"`},
		{"webfetch(example.com)", 1, `write "WebFetch"`},
	} {
		_, err := ParseRule(c.text)
		var bad *RuleError
		if !errors.As(err, &bad) || !errors.Is(err, fs.ErrInvalid) || bad.Column != c.column || !strings.Contains(err.Error(), c.says) || bad.Advice == "" {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	err := Rules{Allow: []string{"Bash"}, Deny: []string{"Bash", "Bash("}}.Check()
	if err == nil || !strings.Contains(err.Error(), "deny[1]: rule") {
		t.Errorf("the list is not named: %v", err)
	}
	if err := (Rules{Mode: "yolo"}).Check(); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "ask, edit, plan or auto") {
		t.Errorf("a wrong mode: %v", err)
	}
}

func TestARuleForAFileMatchesItsPath(t *testing.T) {
	for _, c := range []struct {
		rule, path string
		want       bool
	}{
		{"Write(src/**)", "src/a/b", true},
		{"Write(src/**)", "./src//a", true},
		{"Write(src/**)", "src2/a", false},
		{"Write(src/*)", "src/a/b", false},
		{"Write(**/*.go)", "a.go", true},
		{"Write(**/*.go)", "a/b/c.go", true},
		{"Write(/tmp/**)", "/tmp/a", true},
		{"Write(/tmp/**)", "tmp/a", false},
		{"Write(**)", "/etc/x", false},
		{"Write(**)", "x", true},
		{"Write", "/etc/x", true},
		{"Write(./a)", "a", true},
		{"Write(a)", "/work/ws/a", true},
		{"Write(/work/ws/a)", "a", true},
		{"Write(/work/ws/**)", "/work/ws/a/b", true},
		{"Write(/work/ws2/a)", "a", false},
		{"Write(a)", "/work/ws2/../ws/a", true},
		{"Write(**)", "/work/wsx", false},
		{"*", "x", true},
		{"Wr*", "x", true},
		{"Read(x)", "x", false},
	} {
		in, _ := json.Marshal(map[string]string{"file_path": c.path})
		d := newPolicy(t, Rules{Allow: []string{c.rule}}).Decide(Call{Name: "Write", Input: in})
		if (d.Effect == Allow) != c.want {
			t.Errorf("%s: %s: %+v", c.rule, c.path, d)
		}
	}
}

// A denied command stays denied, or is asked, whatever is added to it.
func FuzzADeniedCommandIsNeverAllowed(f *testing.F) {
	for _, seed := range []string{"", "git status", "x='", "\\", "cat <<EOF\n", "#", "env ", "'", "$(", "{ ", "| sh", "a=", "if true; then", "case x in x) "} {
		for how := range byte(10) {
			f.Add(seed, "\n", how)
		}
	}
	// Everything is allowed but one command.
	p, err := New(Rules{Mode: ModeAuto, Deny: []string{"Bash(forbidden *)"}}, Place{Workspace: "/work/ws"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, before, after string, how byte) {
		denied := []string{
			"forbidden", "'forbidden' x", "f\"orbidden\"", "env forbidden", "sh -c 'forbidden x'", "eval forbidden", "$(forbidden)", "`forbidden`",
			"timeout 5 nice forbidden", "(forbidden)",
		}[int(how)%10]
		script := before + "\n" + denied + "\n" + after
		d := p.Decide(bash(t, script))
		if d.Effect != Allow {
			return
		}
		// It may be allowed only if it is no command there: in a text or a comment.
		if alone := p.Decide(bash(t, before+"\n"+after)); alone.Effect == Allow && !quotes(before) {
			t.Errorf("%q is allowed: %s", script, d.Reason)
		}
	})
}

// quotes reports whether a text may put what follows in quotes or a here document.
func quotes(before string) bool { return strings.ContainsAny(before, "'\"`\\<${(#[") }

// Of two sets of rules the stricter decision counts. Rules without a mode and allow say nothing about other calls.
func TestRulesThatNarrow(t *testing.T) {
	for _, row := range []struct {
		name          string
		first, narrow Rules
		want          map[string]Effect
	}{
		{
			"deny and ask alone",
			Rules{Allow: []string{"Bash(git *)"}},
			Rules{Deny: []string{"Bash(git push *)"}, Ask: []string{"Bash(git commit *)"}},
			map[string]Effect{"git push": Deny, "git commit": Ask, "git log": Allow, "make": Ask},
		},
		{
			"with allow",
			Rules{Allow: []string{"Bash(git *)"}},
			Rules{Allow: []string{"Bash(git log *)", "Bash(make *)"}},
			map[string]Effect{"git log": Allow, "git push": Ask, "make": Ask},
		},
		{"with a mode", Rules{Mode: ModeAuto}, Rules{Mode: ModeAsk}, map[string]Effect{"make": Ask}},
		{"a wider mode", Rules{Deny: []string{"Bash(make *)"}}, Rules{Mode: ModeAuto, Allow: []string{"*"}}, map[string]Effect{"make": Deny, "git log": Ask}},
		{"what cannot be judged", Rules{Mode: ModeAuto}, Rules{Deny: []string{"Bash(git push *)"}}, map[string]Effect{"$X": Ask, "make": Allow}},
		{"none", Rules{Allow: []string{"Bash(make *)"}}, Rules{}, map[string]Effect{"make": Allow}},
	} {
		p, err := New(row.first, Place{})
		if err != nil {
			t.Fatal(err)
		}
		last, err := p.Narrow(Rules{Deny: []string{"Bash(never *)"}})
		if err == nil {
			last, err = last.Narrow(row.narrow)
		}
		if err != nil {
			t.Fatal(err)
		}
		for command, want := range row.want {
			call := call("Bash", "", `{"command":"`+command+`"}`)
			if d := last.Decide(Call{Name: "Bash", Input: json.RawMessage(`{"command":"never"}`)}); d.Effect != Deny {
				t.Errorf("%s: the second of three: %+v", row.name, d)
			}
			narrowed, err := p.Narrow(row.narrow)
			if err != nil {
				t.Fatal(err)
			}
			if d := narrowed.Decide(call); d.Effect != want {
				t.Errorf("%s: %s: %+v, want %s", row.name, command, d, want)
			}
			if d := p.Decide(Call{Name: "Bash", Input: json.RawMessage(`{"command":"never"}`)}); d.Effect == Deny {
				t.Errorf("%s: the first policy has changed: %+v", row.name, d)
			}
		}
	}
	if _, err := (&Policy{}).Narrow(Rules{Deny: []string{"Bash("}}); err == nil {
		t.Error("a malformed rule is accepted")
	}
}
