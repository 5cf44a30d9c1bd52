package opencode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// rule says whether the agent may do an action.
type rule struct {
	permission string // the kind of action; may have wildcards
	pattern    string // the target of the action; may have wildcards
	action     string
}

// The actions of rules.
const (
	actionAllow = "allow"
	actionAsk   = "ask"
	actionDeny  = "deny"
)

// outside is the permission for paths outside of the workspace.
const outside = "external_directory"

// ruleset is the program's "permission": the last matching rule decides.
type ruleset []rule

// parseRules decodes rules in their order, which matters.
func parseRules(raw json.RawMessage) (ruleset, error) {
	var action string
	if json.Unmarshal(raw, &action) == nil {
		return ruleset{{permission: "*", pattern: "*", action: action}}, nil
	}
	var list ruleset
	err := eachKey(raw, func(permission string, value json.RawMessage) error {
		if json.Unmarshal(value, &action) == nil {
			list = append(list, rule{permission: permission, pattern: "*", action: action})
			return nil
		}
		return eachKey(value, func(pattern string, value json.RawMessage) error {
			if err := json.Unmarshal(value, &action); err != nil {
				return fmt.Errorf("%s, %s: %w", permission, pattern, err)
			}
			list = append(list, rule{permission: permission, pattern: pattern, action: action})
			return nil
		})
	})
	return list, err
}

// eachKey calls do for each key of an object, in order.
func eachKey(raw json.RawMessage, do func(key string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return errors.Join(errors.New("it is no object"), err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if err := do(key.(string), value); err != nil { // a key is always a string
			return err
		}
	}
	return nil
}

// MarshalJSON writes an object of objects, in order. The rules of a permission must be adjacent, as
// parseRules and with leave them.
func (rs ruleset) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(rs); {
		n := i + 1
		for n < len(rs) && rs[n].permission == rs[i].permission {
			n++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", literal(rs[i].permission).json(), rs[i:n].patterns())
		i = n
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// patterns returns the JSON of one permission.
func (rs ruleset) patterns() []byte {
	if len(rs) == 1 && rs[0].pattern == "*" {
		return literal(rs[0].action).json() // some permissions accept only an action
	}
	list := make([][]byte, len(rs))
	for i, r := range rs {
		list[i] = slices.Concat(literal(r.pattern).json(), []byte(":"), literal(r.action).json())
	}
	return slices.Concat([]byte("{"), bytes.Join(list, []byte(",")), []byte("}"))
}

// of returns the rules for one permission, under its own name.
func (rs ruleset) of(permission string) ruleset {
	var list ruleset
	for _, r := range rs {
		if fits(permission, r.permission) {
			list = list.add(rule{permission: permission, pattern: r.pattern, action: r.action})
		}
	}
	return list
}

// add appends a rule of the same permission, and drops the rules that it overrides.
func (rs ruleset) add(r rule) ruleset {
	rs = slices.DeleteFunc(slices.Clone(rs), func(old rule) bool { return r.pattern == "*" || old.pattern == r.pattern })
	return append(rs, r)
}

// with returns the rules with a new one at the end, so that it takes precedence. A rule for a
// permission with wildcards must apply to every pattern.
func (rs ruleset) with(permission, pattern, action string) ruleset {
	group := rs.of(permission).add(rule{permission: permission, pattern: pattern, action: action})
	return append(rs.without(permission), group...)
}

// fits reports whether text matches a pattern of the program.
func fits(text, pattern string) bool {
	p := regexp.QuoteMeta(pattern)
	p = strings.ReplaceAll(strings.ReplaceAll(p, `\*`, ".*"), `\?`, ".")
	if rest, ok := strings.CutSuffix(p, " .*"); ok {
		p = rest + "( .*)?"
	}
	ok, err := regexp.MatchString("(?s)^"+p+"$", text)
	return err == nil && ok
}

// fileTools returns the permissions of the tools that read and change files.
func fileTools() []string { return []string{"read", "glob", "grep", "list", "edit"} }

// forProgram returns the rules for the program. The program must ask about all file accesses that
// the workspace guard or the host's rules decide, because the program does not resolve symbolic links.
func (rs ruleset) forProgram(s runnerscripts.Session) ruleset {
	if s.Agent.AllowOutside && !slices.Contains(s.Asks, runnerscripts.AsksRead) {
		return rs
	}
	for _, permission := range fileTools() {
		var group ruleset
		for _, r := range rs.of(permission) {
			if r.action == actionAllow {
				r.action = actionAsk
			}
			group = append(group, r)
		}
		rs = append(rs.without(permission), group...)
	}
	return rs
}

func (rs ruleset) without(permission string) ruleset {
	return slices.DeleteFunc(slices.Clone(rs), func(r rule) bool { return r.permission == permission })
}

// allow reports whether the rules allow an action on all of the patterns.
func (rs ruleset) allow(permission string, patterns []string) bool {
	for _, pattern := range patterns {
		decides := -1
		for i, r := range rs {
			if fits(permission, r.permission) && fits(pattern, r.pattern) {
				decides = i
			}
		}
		if decides < 0 || rs[decides].action != actionAllow {
			return false
		}
	}
	return len(patterns) > 0
}

// toolPattern matches a tool of a profile.
var toolPattern = agent.Pattern{Expr: `^([A-Za-z0-9_.*?-]+)(?:\((.+)\))?$`}

// parseTool parses a tool of a profile: a permission and a pattern. The tools that change files
// share one permission.
func parseTool(where, text string) (permission, pattern string, err error) {
	m := toolPattern.Get().FindStringSubmatch(text)
	if m == nil {
		return "", "", agent.Invalid(`give %s as a tool of OpenCode with or without a pattern, such as "edit" or "bash(git log *)", not %q`, where, text)
	}
	permission, pattern = m[1], m[2]
	switch permission {
	case "write", "apply_patch", "patch":
		permission = "edit"
	}
	if pattern == "" {
		return permission, "*", nil
	}
	if strings.ContainsAny(permission, "*?") || slices.Contains([]string{"todowrite", "question", "webfetch", "websearch", "doom_loop"}, permission) {
		return "", "", agent.Invalid("leave the pattern out of %s: OpenCode knows none for %s", where, permission)
	}
	return permission, pattern, nil
}

// withTools returns the rules with the allowed and denied tools of a profile, which take precedence
// over the other rules.
func (rs ruleset) withTools(p runnerscripts.Profile) (ruleset, error) {
	for i, tool := range p.AllowedTools {
		where := fmt.Sprintf("profile.allowed_tools[%d]", i)
		permission, pattern, err := parseTool(where, tool)
		if err != nil {
			return nil, err
		}
		if permission == outside {
			return nil, agent.Invalid("use agent.allow_outside instead of %s: it is for what is outside of the workspace", where)
		}
		before := rs.of(outside)
		rs = rs.with(permission, pattern, actionAllow)
		if fits(outside, permission) { // it allows tools, not paths
			for _, r := range before {
				rs = rs.with(outside, r.pattern, r.action)
			}
		}
	}
	for i, tool := range p.DeniedTools {
		permission, pattern, err := parseTool(fmt.Sprintf("profile.denied_tools[%d]", i), tool)
		if err != nil {
			return nil, err
		}
		rs = rs.with(permission, pattern, actionDeny)
	}
	return rs, nil
}

// only returns the rules of a subagent with the given tools. The subagent must ask where the
// session must ask.
func (rs ruleset) only(where string, tools []string) (ruleset, error) {
	list := ruleset{{permission: "*", pattern: "*", action: actionDeny}}
	for i, tool := range tools {
		permission, pattern, err := parseTool(fmt.Sprintf("%s[%d]", where, i), tool)
		if err != nil {
			return nil, err
		}
		if pattern != "*" || strings.ContainsAny(permission, "*?") {
			return nil, agent.Invalid("give %s[%d] as the name of a tool alone, not %q: patterns are for profile.allowed_tools and denied_tools", where, i, tool)
		}
		list = append(list.without(permission), rs.of(permission)...)
	}
	return append(list, rs.of(outside)...), nil
}
