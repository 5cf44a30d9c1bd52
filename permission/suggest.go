package permission

import (
	"path"
	"regexp"
	"slices"
)

// plainWord matches a word of a command that stands for itself in a rule.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./+@:-]+$`)

// subcommand matches the second word of a command that says what the program does.
var subcommand = regexp.MustCompile(`^[a-z][a-z0-9:-]*$`)

// withSubcommands are programs whose rules name the subcommand, too: other ones do something else.
var withSubcommands = setOf("cargo", "docker", "dotnet", "gh", "git", "go", "kubectl", "npm", "pip", "pip3", "pnpm", "terraform", "uv", "yarn")

// Suggest returns allow rules for what a call does, such as "Bash(cat *)" for a command and "Write(a)" for a file. A tool alone,
// as "Bash", is for what cannot be judged. The rules may not suffice, because another rule denies or asks: [Policy.Decide] of a
// policy that has them tells. Suggest returns nil if there are none, as for a question to the user.
func (p *Policy) Suggest(call Call) []string {
	var list []string
	for _, a := range p.actions(call) {
		switch inside := a.path != "" && !path.IsAbs(a.path); {
		case a.question, call.Name == "" && a.tool == "other":
			return nil
		case a.innocent, a.tool == Read && inside: // allowed anyway
			continue
		}
		rule := a.suggest()
		if _, err := ParseRule(rule); err != nil {
			return nil
		}
		if !slices.Contains(list, rule) {
			list = append(list, rule)
		}
	}
	if slices.Contains(list, Bash) { // which covers the others
		return slices.DeleteFunc(list, func(rule string) bool { return len(rule) > len(Bash) && rule[:len(Bash)+1] == Bash+"(" })
	}
	return list
}

// suggest returns an allow rule for an action.
func (a action) suggest() string {
	switch {
	case a.unclear != "":
	case a.path != "":
		return a.tool + "(" + a.path + ")"
	case a.host != "":
		return a.tool + "(" + a.host + ")"
	case a.tool == Bash && len(a.words) > 0 && plainWord.MatchString(a.words[0].text):
		name := a.words[0].text
		if len(a.words) > 1 && a.words[1].known && withSubcommands[path.Base(name)] && subcommand.MatchString(a.words[1].text) {
			name += " " + a.words[1].text
		}
		return Bash + "(" + name + " *)"
	}
	return a.tool
}
