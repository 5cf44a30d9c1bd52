package local

import (
	"os"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Every process of a sandbox is started with these two variables. They name the sandbox and the
// command that the process belongs to, even if it has left its parent, its process group and its
// session.
const (
	sandboxMark = "AGENTENV_SANDBOX"
	execMark    = "AGENTENV_EXEC"
)

// inherited is the allow-list: it reports whether commands inherit a variable of this program. All
// other variables stay out, because they may be secrets.
func inherited(key string) bool {
	switch key {
	case "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR":
		return true
	}
	return strings.HasPrefix(key, "LC_")
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv returns the environment that every command of the sandbox gets, in no particular order
// and without duplicates.
func baseEnv(host []string, paths primitives.Paths, user string, extra []string) []string {
	var env []string
	for _, entry := range host {
		key, value, _ := strings.Cut(entry, "=")
		if inherited(key) && value != "" {
			env = setVar(env, entry)
		}
	}
	if _, ok := lookupVar(env, "PATH"); !ok {
		env = append(env, "PATH="+defaultPath)
	}
	env = append(env, "HOME="+paths.Home, "USER="+user, "LOGNAME="+user)
	return mergeEnv(env, extra)
}

// mergeEnv returns a copy of base with the entries set or removed as Command.Env says. The copy has
// room for some more entries.
func mergeEnv(base, entries []string) []string {
	env := make([]string, len(base), len(base)+len(entries)+4)
	copy(env, base)
	for _, entry := range entries {
		if strings.IndexByte(entry, '=') < 0 {
			env = slices.DeleteFunc(env, func(e string) bool { return hasKey(e, entry) })
			continue
		}
		env = setVar(env, entry)
	}
	return env
}

// setVar replaces the entry with the same key, or appends the new one.
func setVar(env []string, entry string) []string {
	key := entry[:strings.IndexByte(entry, '=')]
	for i, e := range env {
		if hasKey(e, key) {
			env[i] = entry
			return env
		}
	}
	return append(env, entry)
}

func lookupVar(env []string, key string) (string, bool) {
	for _, e := range env {
		if hasKey(e, key) {
			return e[len(key)+1:], true
		}
	}
	return "", false
}

func hasKey(entry, key string) bool {
	return len(entry) > len(key) && entry[len(key)] == '=' && entry[:len(key)] == key
}

// commandEnv returns the environment of one command, without its exec mark.
func (s *Sandbox) commandEnv(cmd *primitives.Command, user string) []string {
	env := mergeEnv(s.env, nil)
	if user != "" {
		env = setVar(setVar(env, "USER="+user), "LOGNAME="+user)
	}
	if cmd.TTY != nil {
		env = append(env, "TERM="+defaultTerm)
	}
	if len(cmd.Env) > 0 {
		env = mergeEnv(env, cmd.Env)
		env = slices.DeleteFunc(env, func(e string) bool { return hasKey(e, execMark) })
	}
	return setVar(env, sandboxMark+"="+s.id)
}

func hostEnv() []string { return os.Environ() }
