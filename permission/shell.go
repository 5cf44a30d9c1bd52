package permission

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Limits on a script. What is larger is asked.
const (
	maxScript   = 64 << 10 // bytes
	maxBrackets = 5000     // "(" and "[": the parser takes some KiB of stack for each in the other, and its overflow ends the program
	maxCommands = 1000
	maxNested   = 8 // scripts in scripts, as of "sh -c"
)

// script collects what the commands of a script do.
type script struct {
	policy  *Policy
	dir     string   // working directory; empty for the workspace
	moved   bool     // a command changes the working directory
	dirs    []string // to which commands may change it
	nested  int
	actions []action
}

// script returns what a script of the shell does.
func (p *Policy) script(text, dir string) []action {
	s := &script{policy: p, dir: dir}
	s.parse(text)
	return s.done()
}

// arguments returns what a program with its arguments does, without a shell.
func (p *Policy) arguments(args []string, dir string) []action {
	s := &script{policy: p, dir: dir}
	list := make([]word, len(args))
	for i, a := range args {
		list[i] = word{text: a, known: true}
	}
	s.command(list)
	return s.done()
}

func (s *script) done() []action {
	if len(s.actions) == 0 { // a comment, for example
		s.innocent(Bash)
	}
	return s.actions
}

// unclear records that something cannot be judged.
func (s *script) unclear(why string) {
	s.add(action{tool: Bash, unclear: why})
}

func (s *script) innocent(tool string) { s.add(action{tool: tool, innocent: true}) }

func (s *script) add(a action) {
	a.moved, a.dirs = s.moved || s.dir != "", append([]string{s.dir}, s.dirs...)
	if len(s.actions) > maxCommands {
		return // the last action is unclear
	}
	if len(s.actions) == maxCommands {
		a = action{tool: Bash, unclear: "it has too many commands"}
	}
	s.actions = append(s.actions, a)
}

// divided matches a backslash at the end of a line that may be in a comment or an expanded here document. The parser takes
// the next line for a part of the comment, which no shell does, and does not find the end of such a document as shells do.
var divided = regexp.MustCompile(`#[^\n]*\\\n|<<-?[ \t]*([^'"\\ \t]|\\\n)(?s:.*)\\\n`)

// parse judges a script.
func (s *script) parse(text string) {
	if len(text) > maxScript || s.nested > maxNested || strings.Count(text, "(")+strings.Count(text, "[") > maxBrackets {
		s.unclear("the script is too large")
		return
	}
	if strings.ContainsAny(text, "\x00\r") {
		s.unclear("the script has control characters")
		return
	}
	if divided.MatchString(text) {
		s.unclear("a backslash ends a line of a comment or a here document")
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		s.unclear("the script cannot be parsed")
		return
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.CallExpr); ok {
			for i, w := range c.Args { // the first, or behind command for example
				switch wordOf(w).text {
				case "cd", "pushd", "popd", "eval":
					s.moved = true
					s.into(wordsOf(c.Args[i+1:]))
				}
			}
		}
		return true
	})
	syntax.Walk(file, s.visit)
}

// maxDirs limits the folders that a script may change to; further ones are not known.
const maxDirs = 16

// into records that a command may change the working directory to a folder in args.
func (s *script) into(args []word) {
	for _, w := range args {
		for _, dir := range append([]string{s.dir}, s.dirs...) {
			if p, ok := s.policy.place.clean(dir, w.text); ok && len(s.dirs) < maxDirs {
				s.dirs = append(s.dirs, p)
			}
		}
	}
}

// visit judges one node of a script. A node of a kind that it does not know is unclear.
func (s *script) visit(n syntax.Node) bool {
	switch n := n.(type) {
	case nil, *syntax.File, *syntax.Comment, *syntax.Word, *syntax.Lit, *syntax.DblQuoted, *syntax.CmdSubst, *syntax.ProcSubst,
		*syntax.Block, *syntax.Subshell, *syntax.IfClause, *syntax.WhileClause, *syntax.WordIter, *syntax.CaseClause, *syntax.CaseItem,
		*syntax.BinaryCmd, *syntax.TimeClause:
	case *syntax.SglQuoted:
		if n.Dollar && strings.Contains(n.Value, `\'`) {
			s.unclear("a text ends at another quote in some shells")
		}
	case *syntax.Stmt:
		s.statement(n)
	case *syntax.Redirect:
		s.redirect(n)
	case *syntax.CallExpr:
		for _, a := range n.Assigns {
			s.assign(a, len(n.Args) > 0)
		}
		s.command(wordsOf(n.Args))
	case *syntax.Assign, *syntax.ArrayExpr: // judged with the command
	case *syntax.ArrayElem:
		if n.Index != nil {
			s.unclear("it computes an index")
		}
	case *syntax.DeclClause:
		for _, a := range n.Args {
			s.declared(n.Variant.Value, a)
		}
	case *syntax.ForClause:
		if _, ok := n.Loop.(*syntax.WordIter); !ok || n.Select {
			s.unclear("the loop cannot be judged")
		}
		if it, ok := n.Loop.(*syntax.WordIter); ok && !harmlessVariable(it.Name.Value, false) {
			s.unclear("it sets the variable " + it.Name.Value)
		}
	case *syntax.ParamExp:
		assigns := n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull || n.Exp.Op == syntax.OtherParamOps)
		if n.Excl || n.Index != nil || n.Slice != nil || n.Names != 0 || n.Param == nil || assigns {
			s.unclear("it has an expansion that can run commands or set variables")
		}
	default: // functions, coprocesses, arithmetic and tests, in which variables can run commands, and what is new
		s.unclear("it has a construct that cannot be judged")
	}
	return true
}

// statement judges the redirections of a shell that reads its script from a here document.
func (s *script) statement(n *syntax.Stmt) {
	call, ok := n.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) != 1 {
		return
	}
	name := wordOf(call.Args[0])
	if base := path.Base(name.text); !name.known || !shells[base] && !foreign[base] {
		return
	}
	for _, r := range n.Redirs {
		body := r.Hdoc
		if r.Op == syntax.WordHdoc {
			body = r.Word
		}
		if body == nil {
			continue
		}
		// The command itself stays unclear; this finds what a rule denies.
		if w := hereDoc(body); w.known {
			s.inner(w.text)
		}
	}
}

// redirect judges a redirection.
func (s *script) redirect(r *syntax.Redirect) {
	if r.N != nil && !descriptor.MatchString(r.N.Value) { // {PATH}>f
		s.unclear("a redirection sets a variable")
	}
	tool := Write
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		return
	case syntax.DplIn, syntax.DplOut:
		if w := wordOf(r.Word); w.known && descriptor.MatchString(w.text) {
			return
		}
	case syntax.RdrIn:
		tool = Read
	}
	w := wordOf(r.Word)
	if w.known && (w.text == "/dev/null" || w.text == "/dev/stdout" || w.text == "/dev/stderr") {
		return
	}
	p, ok := s.policy.place.clean(s.dir, w.text)
	switch {
	case !w.known, !ok, s.moved && !path.IsAbs(w.text):
		s.add(action{tool: tool, unclear: "the file of a redirection cannot be told"})
	case strings.HasPrefix(p, "/dev/tcp/"), strings.HasPrefix(p, "/dev/udp/"):
		s.unclear("a redirection opens a connection")
	default:
		s.add(action{tool: tool, path: p})
	}
}

var (
	descriptor = regexp.MustCompile(`^([0-9]+-?|-)$`)
	plainName  = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// harmless are variables that change no more than the appearance or the target of a build.
var harmless = setOf("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME", "TZ", "CI", "TERM", "COLUMNS", "LINES",
	"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "DEBUG", "VERBOSE", "GOOS", "GOARCH", "CGO_ENABLED", "NODE_ENV", "RUST_BACKTRACE", "PYTHONUNBUFFERED",
	"PYTHONDONTWRITEBYTECODE", "DEBIAN_FRONTEND", "GIT_TERMINAL_PROMPT")

func setOf(list ...string) map[string]bool {
	set := map[string]bool{}
	for _, one := range list {
		set[one] = true
	}
	return set
}

// harmlessVariable reports whether a variable can be set. Others, such as PATH, LD_PRELOAD and
// GIT_SSH_COMMAND, choose which programs run. exported means that programs see it.
func harmlessVariable(name string, exported bool) bool {
	if harmless[name] {
		return true
	}
	return !exported && plainName.MatchString(name) && !strings.HasSuffix(name, "_proxy") && !strings.HasPrefix(name, "npm_") &&
		!strings.HasSuffix(name, "path") // of zsh: path is PATH
}

func (s *script) assign(a *syntax.Assign, exported bool) {
	if a.Name == nil || a.Index != nil || !harmlessVariable(a.Name.Value, exported) {
		s.unclear("it sets a variable that can change what commands do")
	}
}

// unexported are the declarations whose variables no program gets.
var unexported = []string{"local", "readonly"}

// declared judges one assignment of export, declare and the like.
func (s *script) declared(variant string, a *syntax.Assign) {
	switch {
	case a.Naked && a.Name == nil: // an option, or a word that may become an assignment
		s.unclear("it declares what cannot be judged")
	case a.Naked && variant == "export": // exports what was set before
		s.assign(a, true)
	default:
		s.assign(a, !slices.Contains(unexported, variant))
	}
}

// inner judges a script in the script.
func (s *script) inner(text string) {
	s.nested++
	s.parse(text)
	s.nested--
}

func wordsOf(list []*syntax.Word) []word {
	all := make([]word, len(list))
	for i, w := range list {
		if all[i] = wordOf(w); !all[i].known {
			all[i].glob = globOf(w)
		}
	}
	return all
}

// wordOf returns the text of a word without its quotes, if the shell does not change it.
func wordOf(w *syntax.Word) word {
	if w.Lit() == "{}" { // of find -exec
		return word{text: "{}", known: true}
	}
	var b strings.Builder
	for i, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text, ok := unquoted(part.Value, i == 0)
			if !ok {
				return word{}
			}
			b.WriteString(text)
		case *syntax.SglQuoted:
			if part.Dollar && strings.Contains(part.Value, `\`) {
				return word{}
			}
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			text, ok := doubleQuoted(part)
			if !ok {
				return word{}
			}
			b.WriteString(text)
		default:
			return word{}
		}
	}
	return word{text: b.String(), known: true}
}

// unquoted returns the text of a literal outside of quotes. ok is false if the shell expands it.
func unquoted(lit string, start bool) (text string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(lit); i++ {
		switch c := lit[i]; {
		case c == '\\' && i+1 < len(lit):
			i++
			if lit[i] != '\n' {
				b.WriteByte(lit[i])
			}
		case strings.IndexByte("*?[{", c) >= 0, c == '~', start && i == 0 && c == '=':
			return "", false
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

func doubleQuoted(q *syntax.DblQuoted) (text string, ok bool) {
	if q.Dollar { // a translation
		return "", false
	}
	var b strings.Builder
	for _, part := range q.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			return "", false
		}
		for i := 0; i < len(lit.Value); i++ {
			if c := lit.Value[i]; c == '\\' && i+1 < len(lit.Value) && strings.IndexByte("$`\"\\\n", lit.Value[i+1]) >= 0 {
				if i++; lit.Value[i] == '\n' {
					continue
				}
			}
			b.WriteByte(lit.Value[i])
		}
	}
	return b.String(), true
}

// hereDoc returns the text of a here document without expansions.
func hereDoc(w *syntax.Word) word {
	var b strings.Builder
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(part.Value)
		case *syntax.SglQuoted:
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			text, ok := doubleQuoted(part)
			if !ok {
				return word{}
			}
			b.WriteString(text)
		default:
			return word{}
		}
	}
	return word{text: b.String(), known: true}
}
