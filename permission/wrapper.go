package permission

import (
	"path"
	"regexp"
	"strings"
)

// shells are programs that run a script as Bash does, or refuse it.
var shells = setOf("sh", "bash", "dash", "ash", "rbash")

// foreign are programs that run the script of the option -c in another shell, or as another user. In zsh and ksh numbers and
// assignments such as functions=(git 'make x') can run commands.
var foreign = setOf("zsh", "ksh", "mksh", "fish", "csh", "tcsh", "su", "runuser", "script", "nu", "elvish", "xonsh", "pwsh")

// opaque are commands of the shell that run, or change, what the script does not show.
var opaque = setOf("source", ".", "trap", "alias", "unalias", "shopt", "set", "enable", "hash", "complete", "compgen", "bind", "mapfile",
	"readarray", "read", "unset", "let", "getopts", "fc", "history", "ulimit", "umask", "pushd", "popd")

// innocents are commands of the shell that change nothing by themselves. Some run the commands in the
// index of a variable that they are to set or to test; see risky.
var innocents = setOf("true", "false", ":", "echo", "pwd", "exit", "printf", "test", "[")

// risky reports whether a command of innocents could set or test a variable.
func risky(cmd []word) bool {
	if name := cmd[0].text; name != "printf" && name != "test" && name != "[" {
		return false
	}
	for _, w := range cmd[1:] {
		if !w.known || strings.HasPrefix(w.text, "-v") || strings.HasPrefix(w.text, "-R") {
			return true
		}
	}
	return false
}

// standard reports whether a command is found in PATH or a folder of the system under its name. Only
// then a wrapper is what its name says.
func standard(cmd string) bool {
	dir := path.Dir(cmd)
	return !strings.Contains(cmd, "/") || dir == "/bin" || dir == "/usr/bin"
}

// wrapper describes a program that runs another one.
type wrapper struct {
	flags  string // options without a value, as letters
	values string // options with a value, as letters
	long   string // long options without a value or with "=", in blanks
	skip   int    // arguments before the program
	// visible means that the wrapper must be allowed itself, because the program has other rights
	// or another place with it.
	visible bool
}

var wrappers = map[string]wrapper{
	"env":     {flags: "i0v", values: "u", long: " ignore-environment unset "},
	"sudo":    {flags: "AbEHnPSkKi", values: "ugCDhprtTR", long: " preserve-env user group non-interactive ", visible: true},
	"doas":    {flags: "nL", values: "u", visible: true},
	"nice":    {flags: "", values: "n", long: " adjustment "},
	"ionice":  {flags: "t", values: "cn", long: " class classdata "},
	"nohup":   {},
	"setsid":  {flags: "cfw", long: " ctty fork wait "},
	"stdbuf":  {values: "ioe", long: " input output error "},
	"timeout": {flags: "v", values: "ks", long: " foreground preserve-status kill-after signal verbose ", skip: 1},
	"time":    {flags: "pv", values: "f", long: " portability verbose format "},
	"command": {flags: "p"},
	"builtin": {},
	"exec":    {flags: "cl"},
	"xargs":   {flags: "0rtpx", values: "nPLsdE", long: " null no-run-if-empty verbose max-args max-procs max-lines delimiter "},
	"busybox": {},
	"toybox":  {},
}

// command judges a simple command: itself, and what it runs.
func (s *script) command(cmd []word) {
	switch {
	case len(cmd) == 0:
		s.innocent(Bash) // only assignments or redirections
		return
	case !cmd[0].known:
		s.unclear("the shell makes the name of a command")
		return
	case cmd[0].text == "":
		s.unclear("the name of a command is empty")
		return
	}
	if s.nested > maxNested {
		s.unclear("commands are nested too deeply")
		return
	}
	s.nested++
	defer func() { s.nested-- }()
	if strings.Contains(cmd[0].text, "/") && !path.IsAbs(cmd[0].text) && (s.moved || s.dir != "") {
		s.unclear("the folder of a program cannot be told")
	}
	name := path.Base(cmd[0].text)
	w, wraps := wrappers[name]
	switch {
	case shells[name]:
		s.add(action{tool: Bash, words: cmd, innocent: standard(cmd[0].text)}) // rules about itself can restrict it
		s.shell(cmd[1:])
	case foreign[name]:
		s.add(action{tool: Bash, words: cmd})
		s.foreign(cmd[1:])
	case cmd[0].text == "eval":
		s.add(action{tool: Bash, words: cmd, innocent: true})
		s.eval(cmd[1:])
	case wraps:
		s.add(action{tool: Bash, words: cmd, innocent: !w.visible && standard(cmd[0].text)})
		s.unwrap(name, w, cmd[1:])
	case name == "find":
		s.add(action{tool: Bash, words: cmd})
		s.find(cmd[1:])
	case cmd[0].text == "cd":
		s.moved = true // also in the script of a shell
		s.add(action{tool: Bash, words: cmd, innocent: s.inside(cmd[1:])})
	case opaque[cmd[0].text]:
		s.add(action{tool: Bash, words: cmd, innocent: true})
		s.unclear("it uses the command " + cmd[0].text + " of the shell")
	case innocents[cmd[0].text]:
		s.add(action{tool: Bash, words: cmd, innocent: !risky(cmd)})
	default:
		s.add(action{tool: Bash, words: cmd})
	}
}

// inside reports whether the argument of cd is a folder below the workspace, however often the
// script changes it.
func (s *script) inside(args []word) bool {
	if len(args) != 1 || !args[0].known || args[0].text == "-" || escapes(args[0].text) {
		return false
	}
	p, ok := s.policy.place.clean("", args[0].text)
	return ok && !path.IsAbs(p) && !ofGit(p)
}

var shellFlags = regexp.MustCompile(`^-[leuxvn]*c[leuxvn]*$`)

// shell judges the arguments of a shell.
func (s *script) shell(args []word) {
	for len(args) > 0 && args[0].known {
		switch a := args[0].text; {
		case len(args) > 1 && shellFlags.MatchString(a):
			if script := args[1]; !script.known || strings.HasPrefix(script.text, "-") || strings.HasPrefix(script.text, "+") { // more options
				s.unclear("the script of a shell cannot be told")
				return
			}
			s.inner(args[1].text)
			return
		case a == "-l" || a == "-e" || a == "-u" || a == "-x" || a == "-eu" || a == "-ex" || a == "--login" || a == "--norc" || a == "--noprofile":
			args = args[1:]
		case len(args) > 1 && a == "-o" && args[1].known && args[1].text == "pipefail":
			args = args[2:]
		default:
			s.unclear("a shell runs a script that is not shown")
			return
		}
	}
	s.unclear("a shell runs a script that is not shown")
}

// foreign judges what may be the script of a program of foreign, as if Bash ran it: this finds what a rule
// denies. The rest is unclear.
func (s *script) foreign(args []word) {
	for i, a := range args {
		text, long := strings.CutPrefix(a.text, "--command=")
		switch {
		case !a.known:
		case long, strings.HasPrefix(a.text, "--session-command="):
			s.inner(strings.TrimPrefix(text, "--session-command="))
		case a.text == "--" && i+1 < len(args):
			s.command(args[i+1:])
		case i+1 < len(args) && args[i+1].known && (a.text == "--command" || a.text == "--session-command" || shortOption.MatchString(a.text)):
			s.inner(args[i+1].text)
		}
	}
	s.unclear("its script cannot be judged")
}

var shortOption = regexp.MustCompile(`^-[A-Za-z]*c$`)

func (s *script) eval(args []word) {
	texts := make([]string, len(args))
	for i, a := range args {
		if !a.known {
			s.unclear("the script of eval cannot be told")
			return
		}
		texts[i] = a.text
	}
	s.inner(strings.Join(texts, " "))
}

var assignment = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)=`)

// unwrap judges the program that a wrapper runs.
func (s *script) unwrap(name string, w wrapper, args []word) {
	for len(args) > 0 && args[0].known && strings.HasPrefix(args[0].text, "-") {
		n, ok := w.option(args[0].text)
		if name == "nice" && regexp.MustCompile(`^-[0-9]+$`).MatchString(args[0].text) {
			n, ok = 1, true
		}
		if !ok || n > len(args) || !known(args[:n]) {
			s.unclear("an option of " + name + " cannot be judged")
			return
		}
		stop := args[0].text == "--"
		if args = args[n:]; stop {
			break
		}
	}
	for (name == "env" || name == "sudo") && len(args) > 0 {
		m := assignment.FindStringSubmatch(args[0].text)
		if !args[0].known || m == nil {
			break
		}
		if !harmlessVariable(m[1], true) {
			s.unclear("it sets a variable that can change what commands do")
		}
		args = args[1:]
	}
	if len(args) < w.skip || !known(args[:w.skip]) {
		s.unclear("the command of " + name + " cannot be told")
		return
	}
	args = args[w.skip:]
	if name == "xargs" {
		args = append(args[:len(args):len(args)], word{})
	}
	if len(args) > 0 {
		s.command(args)
	}
}

// known reports whether the text of each word is known.
func known(list []word) bool {
	for _, w := range list {
		if !w.known {
			return false
		}
	}
	return true
}

// option returns how many arguments an option takes, with itself. ok is false if it is not known.
func (w wrapper) option(text string) (n int, ok bool) {
	if text == "--" {
		return 1, true
	}
	if long, isLong := strings.CutPrefix(text, "--"); isLong {
		long, _, hasValue := strings.Cut(long, "=")
		// An option that takes its value as the next argument is not told from one without.
		takes := strings.Contains(" unset user group adjustment class classdata input output error kill-after signal format max-args max-procs max-lines delimiter ", " "+long+" ")
		if !strings.Contains(w.long, " "+long+" ") || takes && !hasValue {
			return 0, false
		}
		return 1, true
	}
	for i, c := range text[1:] {
		if strings.ContainsRune(w.values, c) {
			if i+2 < len(text) {
				return 1, true // -n5
			}
			return 2, true
		}
		if !strings.ContainsRune(w.flags, c) {
			return 0, false
		}
	}
	return 1, len(text) > 1
}

// find judges the commands that find runs.
func (s *script) find(args []word) {
	if !known(args) {
		s.unclear("find may run a command that cannot be told")
	}
	for i := 0; i < len(args); i++ {
		switch args[i].text {
		case "-exec", "-execdir", "-ok", "-okdir":
			var cmd []word
			for i++; i < len(args) && args[i].text != ";" && args[i].text != "+"; i++ {
				w := args[i]
				if strings.Contains(w.text, "{}") {
					w = word{}
				}
				cmd = append(cmd, w)
			}
			s.command(cmd)
		}
	}
}
