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

// An editor has its action in the field of a shell's command. Rules about files hold for the file that it names beside.
func TestACommandBesideAFileIsJudgedAsBoth(t *testing.T) {
	for _, c := range []struct {
		rules Rules
		call  Call
		want  Effect
	}{
		{Rules{Mode: ModeAuto, Deny: []string{"Write(.env)"}}, call("editor", "execute", `{"command":"create","path":".env"}`), Deny},
		{Rules{Mode: ModeAuto, Deny: []string{"Read(.env)"}}, call("editor", "execute", `{"command":"view","file_path":"/work/ws/.env"}`), Deny},
		{Rules{Mode: ModeAuto, Deny: []string{"Write(.env)"}}, call("editor", "execute", `{"command":"view","path":".env"}`), Allow},
		{Rules{Mode: ModePlan, Allow: []string{"editor"}}, call("editor", "execute", `{"command":"view","path":".env"}`), Allow},
		{Rules{Mode: ModePlan, Allow: []string{"editor"}}, call("editor", "execute", `{"command":"create","path":".env"}`), Deny},
		{Rules{Mode: ModeAuto, Deny: []string{"Write(.env)"}}, call("editor", "execute", `{"command":"create","path":"~/.env"}`), Ask},
		{Rules{Mode: ModeAuto, Deny: []string{"Write(.env)"}}, call("editor", "execute", `{"command":"create","path":"a"}`), Allow},
		{Rules{Mode: ModeAuto, Deny: []string{"Bash(git push *)"}}, call("run", "execute", `{"command":"git push","path":"a"}`), Deny},
		{Rules{Mode: ModeAsk, Allow: []string{"editor"}}, call("editor", "execute", `{"command":"create","path":"a"}`), Allow},
		{Rules{Mode: ModeAuto, Deny: []string{"Write(src/**)"}}, call("Bash", "execute", `{"command":"ls","path":"src"}`), Allow},
		{Rules{Mode: ModeAuto, Deny: []string{"Write(src/**)"}}, call("run", "execute", `{"command":"ls"}`, "src/a"), Allow},
	} {
		if d := newPolicy(t, c.rules).Decide(c.call); d.Effect != c.want {
			t.Errorf("%+v, %s %s: %+v, not %s", c.rules, c.call.Name, c.call.Input, d, c.want)
		}
	}
	if s := newPolicy(t, Rules{}).Subject(call("editor", "execute", `{"command":"create","path":".env"}`)); s != "create .env" {
		t.Errorf("the user sees %q", s)
	}
}

// An address has many forms, and a rule about it is about all of them.
func TestAnAddressHasOneForm(t *testing.T) {
	p := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{"Fetch(169.254.169.254)", "Fetch([::1])", "Fetch([::ffff:10.0.0.1])"}})
	for _, host := range []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0xa9.254.0251.0xfe", "169.254.43518", "169.16689662", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:0:0:1]", "[::1]", "10.1",
	} {
		if d := p.Decide(call("WebFetch", "", `{"url":"http://`+host+`/x"}`)); d.Effect != Deny {
			t.Errorf("%s: %s (%s)", host, d.Effect, d.Reason)
		}
		if d := p.Decide(bash(t, "curl 'http://"+host+"/x'")); d.Effect != Ask {
			t.Errorf("curl %s: %s (%s)", host, d.Effect, d.Reason)
		}
	}
	for _, host := range []string{"169.254.169.253", "2852039165", "1.2.3.4.5", "0x1ffffffff", "08", "169.254.169.254.example.com"} {
		if d := p.Decide(call("WebFetch", "", `{"url":"http://`+host+`/x"}`)); d.Effect != Allow {
			t.Errorf("%s: %s (%s)", host, d.Effect, d.Reason)
		}
	}
}

// The model writes the input, and may add fields that one program reads and another one does not.
func TestAnInputThatProgramsReadInSeveralWaysIsAsked(t *testing.T) {
	p := newPolicy(t, Rules{
		Mode: ModeEdit, Allow: []string{"Bash(git *)", "Bash(./build *)"}, Deny: []string{"Bash(git push *)", "Write(secret/**)", "Read(secret/**)"},
	})
	for want, calls := range map[Effect][]Call{
		Ask: {
			call("bash", "", `{"command":"git status","cwd":"src","workdir":"/tmp/x"}`),
			call("bash", "", `{"command":"git status","cwd":"src","workdir":"secret"}`),
			call("bash", "", `{"command":"./build","working_directory":"vendor"}`),
			call("bash", "", `{"command":"git push","command":"git status"}`),
			call("local_shell", "", `{"command":["git","status"],"env":{"GIT_SSH_COMMAND":"x"}}`),
			call("local_shell", "", `{"command":["git","status"],"env":["PATH=."]}`),
			call("exec_command", "", `{"cmd":"git status","shell":"./bash"}`),
			call("exec_command", "", `{"cmd":"git status","shell":"/work/ws/bash"}`),
			call("exec_command", "", `{"cmd":"git status","shell":"python"}`),
			call("write_file", "", `{"file_path":"secret/a","cwd":"src"}`),
			call("write_file", "", `{"file_path":"secret/a","file_path":"src/a"}`),
			call("read_file", "", `{"path":"secret/a","cwd":"src"}`),
			call("Grep", "", `{"pattern":"x","path":"secret","cwd":"src"}`),
			call("list_directory", "", `{"cwd":"src"}`),
			call("Read", "", `{"file_path":" secret/a"}`), // Claude Code reads secret/a
			call("Write", "", `{"file_path":"\u00a0/etc/x"}`),
			call("Write", "", `{"file_path":"\ufeff/etc/x"}`),
			call("apply_patch", "", `{"patchText":"*** Begin Patch\n*** Add File: secret/a","path":"src/a"}`),
		},
		Allow: {
			call("bash", "", `{"command":"git status","cwd":"/work/ws","workdir":"/work/ws"}`),
			call("local_shell", "", `{"command":["git","status"],"env":{"CI":"1"},"working_directory":"src"}`),
			call("local_shell", "", `{"command":["git","status"],"env":null}`),
			call("exec_command", "", `{"cmd":"git status","shell":"/bin/bash"}`),
			call("exec_command", "", `{"cmd":"git status","shell":"sh","env":{}}`),
			call("write_file", "", `{"file_path":"/work/ws/src/a","cwd":"/work/ws/src"}`),
			call("Write", "", `{"file_path":"src/a b"}`),
			call("apply_patch", "", `{"patchText":"...","path":"src/a"}`, "src/a"),
		},
	} {
		for _, c := range calls {
			if d := p.Decide(c); d.Effect != want {
				t.Errorf("%s %s: %s, not %s (%s)", c.Name, c.Input, d.Effect, want, d.Reason)
			}
		}
	}
}
