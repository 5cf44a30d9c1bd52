package primitivestest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// commandRules returns the rules that a command gets what the caller asked for.
func commandRules() []rule {
	return concat(argumentRules(), environmentRules(), directoryRules(), userRules(), descriptorRules())
}

func argumentRules() []rule {
	rules := []rule{
		{name: "a megabyte of arguments arrives whole", check: func(t testingT, s *sandbox) {
			args := make([]string, 16)
			for i := range args {
				args[i] = strings.Repeat(string(rune('a'+i)), 64<<10)
			}
			sum := sha256.Sum256([]byte(strings.Join(args, "")))
			got := s.probed(t, append([]string{"argsum"}, args...)...)
			expect(t, "sum", got, fmt.Sprintf("16 %d %x", 1<<20, sum))
		}},
		{name: "ten thousand arguments arrive whole", check: func(t testingT, s *sandbox) {
			args := slices.Repeat([]string{"x"}, 10_000)
			sum := sha256.Sum256([]byte(strings.Join(args, "")))
			expect(t, "sum", s.probed(t, append([]string{"argsum"}, args...)...), fmt.Sprintf("10000 10000 %x", sum))
		}},
	}
	for what, arg := range map[string]string{
		"an empty argument":          "",
		"a newline in an argument":   "two\nlines\n",
		"invalid UTF-8 in arguments": "\xc3\x28\xff",
		"shell syntax in arguments":  "$HOME `id` $(id) * ~ 'a' \"b\" \\ ; | & > f # !!",
		"blanks around an argument":  "  a  b\t",
		"an argument like an option": "--help",
		"UTF-8 in arguments":         "café résumé €100 中文 😀",
	} {
		rules = append(rules, rule{name: what + " arrives as it is", check: func(t testingT, s *sandbox) {
			got := hexList(t, s.probed(t, "args", arg, "last", arg))
			expect(t, "arguments", strings.Join(got, "|"), strings.Join([]string{arg, "last", arg}, "|"))
		}})
	}
	slices.SortFunc(rules, func(a, b rule) int { return strings.Compare(a.name, b.name) })
	return rules
}

func hexList(t testingT, s string) []string {
	t.Helper()
	var list []string
	if err := json.Unmarshal([]byte(s), &list); err != nil {
		t.Fatalf("list from the probe: %v in %q", err, s)
	}
	for i, h := range list {
		b, err := hex.DecodeString(h)
		if err != nil {
			t.Fatalf("list from the probe: %v", err)
		}
		list[i] = string(b)
	}
	return list
}

// environment runs a command with entries added to its environment, and returns its
// environment.
func (s *sandbox) environment(t testingT, entries ...string) []string {
	t.Helper()
	cmd := s.command("env")
	cmd.Env = entries
	res := s.run(t, cmd, primitives.RunOptions{})
	return hexList(t, string(res.Stdout))
}

func environmentRules() []rule {
	rules := []rule{
		{name: "the last entry of a variable wins", check: func(t testingT, s *sandbox) {
			env := s.environment(t, "PT_A=1", "PT_B=x", "PT_A=2", "PT_A=3")
			got := slices.DeleteFunc(env, func(e string) bool { return !strings.HasPrefix(e, "PT_A") })
			expect(t, "entries", strings.Join(got, " "), "PT_A=3")
		}},
		{name: "an entry without a value removes an inherited variable", check: func(t testingT, s *sandbox) {
			inherited := s.environment(t)
			if len(inherited) == 0 {
				t.Fatalf("the sandbox has no environment: a command needs at least PATH")
			}
			key, _, _ := strings.Cut(inherited[0], "=")
			for _, e := range s.environment(t, key) {
				if strings.HasPrefix(e, key+"=") {
					t.Errorf("%s is still there", key)
				}
			}
		}},
		{name: "an entry without a value removes one set before", check: func(t testingT, s *sandbox) {
			expect(t, "PT_A is there", slices.Contains(s.environment(t, "PT_A=1", "PT_A"), "PT_A=1"), false)
			expect(t, "PT_A is there", slices.Contains(s.environment(t, "PT_A", "PT_A=1"), "PT_A=1"), true)
		}},
		{name: "variables are added to the sandbox's own", check: func(t testingT, s *sandbox) {
			own, again := s.environment(t), s.environment(t)
			all := s.environment(t, "PT_A=1")
			for _, entry := range own {
				// A backend may set a different mark for each command.
				if !slices.Contains(all, entry) && slices.Contains(again, entry) {
					t.Errorf("%s is missing", entry)
				}
			}
			expect(t, "PT_A is there", slices.Contains(all, "PT_A=1"), true)
		}},
		{name: "the host's environment is not inherited", check: func(t testingT, s *sandbox) {
			for _, e := range s.environment(t) {
				if strings.HasPrefix(e, hostVariable+"=") {
					t.Errorf("%s came from the host", hostVariable)
				}
			}
		}},
		{name: "a program is looked up in the PATH of the command", check: func(t testingT, s *sandbox) {
			s.probed(t, "copyself", "bin/pt-tool")
			cmd := primitives.Command{Args: []string{"pt-tool", "out", "found"}, Env: []string{"PATH=" + s.abs("empty") + ":" + s.abs("bin")}}
			expect(t, "output", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "found")
			cmd.Env = []string{"PATH=" + s.abs("empty")}
			s.expectNoStart(t, cmd, primitives.ErrCommandNotFound)
		}},
	}
	for what, value := range map[string]string{
		"blanks": " a  b ", "nothing": "", "a newline": "a\nb\n", "an equals sign": "a=b=c", "shell syntax": "$HOME `id` 'x' \"y\" \\",
		"invalid UTF-8": "\xc3\x28",
	} {
		rules = append(rules, rule{name: "a variable holding " + what + " arrives as it is", check: func(t testingT, s *sandbox) {
			if env := s.environment(t, "PT_VALUE="+value); !slices.Contains(env, "PT_VALUE="+value) {
				t.Errorf("environment %q has no PT_VALUE=%q", env, value)
			}
		}})
	}
	slices.SortFunc(rules, func(a, b rule) int { return strings.Compare(a.name, b.name) })
	return rules
}

func directoryRules() []rule {
	expectCwd := func(t testingT, s *sandbox, dir, want string) {
		t.Helper()
		cmd := s.command("cwd")
		cmd.Dir = dir
		expect(t, "working directory", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), want)
	}
	return []rule{
		{name: "without a working directory a command starts in the workspace", check: func(t testingT, s *sandbox) {
			expectCwd(t, s, "", s.Paths().Workspace)
		}},
		{name: "a relative file and a command meet in the same place", check: func(t testingT, s *sandbox) {
			s.write(t, "meet", "me")
			cmd := s.command("show", s.in("meet"))
			cmd.Dir = ""
			expect(t, "content", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "me")
		}},
		{name: "a relative working directory starts at the workspace", check: func(t testingT, s *sandbox) {
			expectCwd(t, s, s.dir, s.abs())
		}},
		{name: "an absolute working directory is taken as it is", check: func(t testingT, s *sandbox) {
			expectCwd(t, s, "/", "/")
			expectCwd(t, s, s.Paths().Home, s.Paths().Home)
		}},
		{name: "a program with a slash is relative to the working directory", check: func(t testingT, s *sandbox) {
			s.probed(t, "copyself", "bin/pt-tool")
			cmd := primitives.Command{Args: []string{"bin/pt-tool", "out", "found"}, Dir: s.dir}
			expect(t, "bin/", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "found")
			cmd = primitives.Command{Args: []string{"./pt-tool", "out", "found"}, Dir: path.Join(s.dir, "bin")}
			expect(t, "./", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "found")
		}},
	}
}

// asUser returns a command that runs the probe as a user. The user may be unable to reach the
// folder of the sandbox, so the program lies elsewhere.
func (s *sandbox) asUser(t testingT, user string, words ...string) primitives.Command {
	t.Helper()
	dir := "/tmp/primitivestest-" + strings.Trim(s.token, ".")
	cmd := s.command("copyself", dir+"/probe", "chmod", "755", dir)
	if res := s.run(t, cmd, primitives.RunOptions{}); !res.Status.Success() {
		t.Fatalf("copying the probe: %s", res.Stderr)
	}
	t.Cleanup(func() { s.run(t, s.command("rm", dir), primitives.RunOptions{}) })
	return primitives.Command{Args: append([]string{dir + "/probe", "mark", s.token}, words...), Dir: "/", User: user}
}

func userRules() []rule {
	as := func(t testingT, s *sandbox, user string) primitives.Command {
		t.Helper()
		return s.asUser(t, user, "ids")
	}
	expectIDs := func(t testingT, s *sandbox, user, want string) {
		t.Helper()
		cmd := as(t, s, user)
		if !s.Capabilities().Users {
			s.expectNoStart(t, cmd, errors.ErrUnsupported)
			return
		}
		res := s.run(t, cmd, primitives.RunOptions{})
		expect(t, "user and group", string(res.Stdout), want)
	}
	return []rule{
		{name: "a user by number runs the command", check: func(t testingT, s *sandbox) {
			cmd := as(t, s, "4711")
			if !s.Capabilities().Users {
				s.expectNoStart(t, cmd, errors.ErrUnsupported)
				return
			}
			uid, _, _ := strings.Cut(string(s.run(t, cmd, primitives.RunOptions{}).Stdout), ":")
			expect(t, "user", uid, "4711")
		}},
		{name: "user and group by number run the command", check: func(t testingT, s *sandbox) {
			expectIDs(t, s, "4711:4712", "4711:4712")
		}},
		{name: "the sandbox's own user may be named", check: func(t testingT, s *sandbox) {
			own := s.probed(t, "ids")
			cmd := s.command("ids")
			cmd.User, _, _ = strings.Cut(own, ":")
			expect(t, "user and group", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), own)
		}},
		{name: "an unknown user is ErrUnknownUser", check: func(t testingT, s *sandbox) {
			want := primitives.ErrUnknownUser
			if !s.Capabilities().Users {
				want = errors.ErrUnsupported
			}
			s.expectNoStart(t, as(t, s, "no-such-user"), want)
		}},
		{name: "a user cannot read what belongs to another", check: func(t testingT, s *sandbox) {
			cmd := as(t, s, "4711:4711")
			if !s.Capabilities().Users {
				s.expectNoStart(t, cmd, errors.ErrUnsupported)
				return
			}
			secret := path.Join(path.Dir(cmd.Args[0]), "secret")
			s.probed(t, "write", secret, "x", "chmod", "600", secret)
			cmd.Args = append(cmd.Args[:3], "may-read", secret)
			expect(t, "may read", string(s.run(t, cmd, primitives.RunOptions{}).Stdout), "false")
		}},
	}
}
