package permission

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// The portable names of tools.
const (
	Bash  = "Bash"
	Write = "Write"
	Read  = "Read"
	Fetch = "Fetch"
)

// Rule matches tool calls. The zero value matches none. Use [ParseRule].
type Rule struct {
	text string
	tool string // a portable name, or a pattern of names
	arg  string // empty for every call
}

// RuleError is the error of a rule that does not parse. It is fs.ErrInvalid.
type RuleError struct {
	Text   string // the rule
	Column int    // in bytes, from 1
	Reason string // what is wrong
	Advice string // how to mend it
}

// Error describes the problem and how to mend it.
func (e *RuleError) Error() string {
	return fmt.Sprintf("rule %q, column %d: %s; %s", e.Text, e.Column, e.Reason, e.Advice)
}

// Unwrap returns fs.ErrInvalid.
func (*RuleError) Unwrap() error { return fs.ErrInvalid }

var (
	toolName = regexp.MustCompile(`^[A-Za-z_*][A-Za-z0-9_.*/-]*$`)
	hostName = regexp.MustCompile(`^(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])$`)
)

// aliases are other names of the portable tools in rules.
var aliases = map[string]string{"Edit": Write, "WebFetch": Fetch}

// ParseRule parses a rule such as "Bash(git *)". Space around it does not count. Errors are [*RuleError].
func ParseRule(text string) (Rule, error) {
	text = strings.TrimSpace(text)
	bad := func(at int, reason, advice string) (Rule, error) {
		return Rule{}, &RuleError{Text: text, Column: at + 1, Reason: reason, Advice: advice}
	}
	name, arg, hasArg := strings.Cut(text, "(")
	switch {
	case name == "":
		return bad(0, "it names no tool", `begin with one, as in "Bash(git *)"`)
	case !toolName.MatchString(name):
		return bad(0, fmt.Sprintf("%q is no name of a tool", name), `write a tool and what it may do, as in "Bash(git *)" or "mcp__github__*"`)
	case ruleName(name) != name: // no call has it
		return bad(0, fmt.Sprintf("rules have another name for %q", name), fmt.Sprintf("write %q, which is the same for all agents", ruleName(name)))
	case !hasArg:
		return Rule{text: text, tool: portableName(name)}, nil
	case !strings.HasSuffix(arg, ")"):
		return bad(len(text), `the closing ")" is missing`, `end the rule with it, as in "Bash(git *)"`)
	}
	arg = strings.TrimSuffix(arg, ")")
	r, at := Rule{text: text, tool: portableName(name), arg: arg}, len(name)+1
	if strings.TrimSpace(arg) == "" {
		return bad(at, "the parentheses are empty", fmt.Sprintf("leave them out to match every call of %s", name))
	}
	if strings.ContainsAny(arg, "\x00\n\r") {
		return bad(at+strings.IndexAny(arg, "\x00\n\r"), "a rule is one line", "write one rule for each")
	}
	switch r.tool {
	case Bash:
		if i := strings.Index(arg, ":*"); i >= 0 {
			return bad(at+i, `":*" is not the end of a command here`, fmt.Sprintf("write %q", strings.Replace(text, ":*", " *", 1)))
		}
		if i := strings.IndexAny(arg, "|&;<>`$()"); i >= 0 {
			return bad(at+i, fmt.Sprintf("%q is no part of a simple command", arg[i]), "write one rule for each command; each command of a pipe or list is judged alone")
		}
		if strings.Trim(arg, "* ") == "" {
			r.arg = ""
		}
	case Write, Read:
		switch {
		case strings.HasPrefix(arg, "~"):
			return bad(at, "the home folder differs between sandboxes", "write the path in full, or one below the workspace")
		case escapes(arg):
			return bad(at+strings.Index(arg, ".."), `the path has ".."`, "write a path below the workspace, or an absolute one")
		case !doublestar.ValidatePattern(arg):
			return bad(at, "the pattern is malformed", `close each "[" and "{"`)
		case strings.HasSuffix(arg, "/") && arg != "/":
			return bad(len(text)-1, "the path ends with \"/\", and no file does", fmt.Sprintf("write \"%s(%s**)\" for all files in the folder", name, arg))
		}
		r.arg = path.Clean(arg)
	case Fetch:
		r.arg = strings.ToLower(arg)
		if !hostName.MatchString(r.arg) {
			return bad(at, fmt.Sprintf("%q is no host", arg), `write the name of a host alone, as in "Fetch(example.com)" or "Fetch(*.example.com)"`)
		}
		if r.arg = canonicalHost(r.arg); r.arg == "*" {
			r.arg = ""
		}
	default:
		return bad(len(name), fmt.Sprintf("%s takes no parentheses", name), "only Bash, Write, Edit, Read, Fetch and WebFetch do; write the name alone")
	}
	return r, nil
}

// ruleName returns the name that rules have for a tool, which may be an agent's own or have another case.
func ruleName(name string) string {
	for _, known := range []string{Bash, Write, "Edit", Read, Fetch, "WebFetch"} {
		if strings.EqualFold(known, name) {
			return known
		}
	}
	if portable, ok := tools[name]; ok {
		return portable
	}
	return name
}

func portableName(name string) string {
	if p, ok := aliases[name]; ok {
		return p
	}
	return name
}

func escapes(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// String returns the rule as it was written.
func (r Rule) String() string { return r.text }

// covers reports whether the rule is about a tool.
func (r Rule) covers(tool string) bool { return r.text != "" && glob(r.tool, tool) }

// glob reports whether text matches a pattern in which * stands for any text.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}

// matchHost reports whether the pattern of a Fetch rule matches a host.
func matchHost(pattern, host string) bool {
	if below, ok := strings.CutPrefix(pattern, "*."); ok {
		return strings.HasSuffix(host, "."+below)
	}
	return pattern == host
}

// matchPath reports whether the pattern of a Write or Read rule matches a path, which is cleaned,
// and relative if it is below the workspace. A relative pattern matches only there.
func matchPath(pattern, p string) bool {
	if strings.HasPrefix(pattern, "/") != strings.HasPrefix(p, "/") {
		return false
	}
	ok, err := doublestar.Match(pattern, p)
	return err == nil && ok
}
