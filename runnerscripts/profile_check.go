package runnerscripts

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
)

// Check refuses a profile that no agent could use: invalid or duplicate names, paths that lead out
// of their folder, servers with neither a command nor a URL. Its errors are a [*ScriptFailure] with
// [FailInvalidRequest], which names the field.
func (p Profile) Check() error {
	if p.MaxTurns < 0 {
		return invalid("give profile.max_turns as 0 (no limit) or more, not %d", p.MaxTurns)
	}
	if p.BudgetUSD < 0 {
		return invalid("give profile.budget_usd as 0 (no limit) or more, not %v", p.BudgetUSD)
	}
	for _, check := range []func() error{
		func() error { return checkAll("rules", p.Rules, Rule.check) },
		func() error { return checkAll("skills", p.Skills, Skill.check) },
		func() error { return checkAll("commands", p.Commands, SlashCommand.check) },
		func() error { return checkAll("subagents", p.Subagents, Subagent.check) },
		func() error { return checkAll("mcp_servers", p.MCPServers, MCPServer.check) },
		func() error { return checkAll("plugins", p.Plugins, Plugin.check) },
		func() error { return checkHooks(p.Hooks) },
		func() error { return checkFiles("files", p.Files) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkAll checks the elements of one field. check returns the name of an element.
func checkAll[T any](field string, parts []T, check func(part T, where string) (string, error)) error {
	seen := map[string]bool{}
	for i, part := range parts {
		where := fmt.Sprintf("profile.%s[%d]", field, i)
		name, err := check(part, where)
		switch {
		case err != nil:
			return err
		case !plainID(name):
			return invalid(`give %s a name of 1 to 128 letters, digits, "-", "_" and ".", not %q`, where, name)
		case seen[name]:
			return invalid("rename %s: there are two of the name %q", where, name)
		}
		seen[name] = true
	}
	return nil
}

func (r Rule) check(where string) (string, error) {
	return r.Name, checkText(where+".content", r.Content)
}

func (s Skill) check(where string) (string, error) {
	for _, f := range s.Files {
		if f.Path == "SKILL.md" {
			return s.Name, invalid("put the text of SKILL.md into %s.content", where)
		}
	}
	return s.Name, firstError(
		checkText(where+".description", s.Description),
		checkText(where+".content", s.Content),
		checkFrontmatter(where, s.Frontmatter, "name", "description"),
		checkFiles(strings.TrimPrefix(where, "profile.")+".files", s.Files),
	)
}

func (c SlashCommand) check(where string) (string, error) {
	return c.Name, firstError(checkText(where+".content", c.Content), checkFrontmatter(where, c.Frontmatter, "description"))
}

func (s Subagent) check(where string) (string, error) {
	return s.Name, firstError(
		checkText(where+".description", s.Description),
		checkText(where+".prompt", s.Prompt),
		checkFrontmatter(where, s.Frontmatter, "name", "description", "tools", "model"),
	)
}

func (m MCPServer) check(where string) (string, error) {
	switch {
	case len(m.Command) == 0 && m.URL == "":
		return m.Name, invalid("give %s a command or a url", where)
	case len(m.Command) > 0 && m.URL != "":
		return m.Name, invalid("give %s a command or a url, not both", where)
	case len(m.Command) > 0 && m.Command[0] == "":
		return m.Name, invalid("give %s.command a program: its first text is empty", where)
	case m.URL != "" && (len(m.Files) > 0 || m.Install != "" || len(m.Env) > 0):
		return m.Name, invalid("leave files, install and env out of %s: they are for servers with a command", where)
	case len(m.Command) > 0 && len(m.Headers) > 0:
		return m.Name, invalid("leave headers out of %s: they are for servers with a url", where)
	}
	if m.URL != "" {
		if u, err := url.Parse(m.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return m.Name, invalid("give %s.url as http:// or https:// with a host", where) // a URL may hold a key
		}
	}
	for key := range m.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return m.Name, invalid("rename a variable of %s.env: %q cannot be the name of one", where, key)
		}
	}
	return m.Name, checkFiles(strings.TrimPrefix(where, "profile.")+".files", m.Files)
}

func (p Plugin) check(where string) (string, error) {
	if (p.Marketplace == "") == (len(p.Files) == 0) {
		return p.Name, invalid("give %s either files or a marketplace", where)
	}
	return p.Name, checkFiles(strings.TrimPrefix(where, "profile.")+".files", p.Files)
}

func checkHooks(hooks []Hook) error {
	for i, h := range hooks {
		where := fmt.Sprintf("profile.hooks[%d]", i)
		if err := firstError(checkText(where+".event", h.Event), checkText(where+".command", h.Command)); err != nil {
			return err
		}
		if h.TimeoutSeconds < 0 {
			return invalid("give %s.timeout_seconds as 0 (the agent's own) or more, not %d", where, h.TimeoutSeconds)
		}
	}
	return nil
}

// checkFiles refuses files that would be written outside their folder, or twice.
func checkFiles(field string, files []WorkspaceFile) error {
	seen := map[string]bool{}
	for i, f := range files {
		where := fmt.Sprintf("profile.%s[%d]", field, i)
		switch {
		case !fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsAny(f.Path, "\x00\\"):
			return invalid("give %s.path inside its folder, relative to it and without \"..\": %q is none", where, f.Path)
		case f.Text != "" && len(f.Content) > 0:
			return invalid("give %s either text or content, not both", where)
		case seen[f.Path]:
			return invalid("remove %s: %q stands twice", where, f.Path)
		}
		seen[f.Path] = true
	}
	for i, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return invalid("rename profile.%s[%d], %q, or the other one: %q is a file, too", field, i, f.Path, dir)
			}
		}
	}
	return nil
}

func checkText(where, text string) error {
	if strings.TrimSpace(text) == "" {
		return invalid("give %s a text: it is empty", where)
	}
	return nil
}

// checkFrontmatter refuses keys that have a field of their own, and keys that a YAML reader would
// misread.
func checkFrontmatter(where string, front map[string]any, fields ...string) error {
	for key := range front {
		if !plainID(key) {
			return invalid(`rename a key of %s.frontmatter: %q cannot be a key, which has letters, digits, "-", "_" and "."`, where, key)
		}
	}
	for _, field := range fields {
		if _, ok := front[field]; ok {
			return invalid("use %s.%s instead of the key in its frontmatter", where, field)
		}
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
