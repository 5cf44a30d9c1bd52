package opencode

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// The program replaces {env:NAME} and {file:PATH} in the text of its configuration before it
// parses the JSON.

// literal is a text of the configuration in which the program replaces nothing.
type literal string

// MarshalJSON escapes the braces that could start a replacement.
func (l literal) MarshalJSON() ([]byte, error) { return l.json(), nil }

func (l literal) json() []byte {
	return bytes.ReplaceAll(rawJSON(string(l)), []byte("{"), []byte(`\u007b`))
}

// expanded is a text in which ${NAME} refers to an environment variable.
type expanded string

// MarshalJSON writes the references in the form that the program replaces.
func (e expanded) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('"')
	put := func(l literal) {
		quoted := l.json()
		b.Write(quoted[1 : len(quoted)-1])
	}
	rest := string(e)
	for {
		m := agent.Variable.Get().FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		put(literal(rest[:m[0]]))
		b.WriteString("{env:" + rest[m[2]:m[3]] + "}")
		rest = rest[m[1]:]
	}
	put(literal(rest))
	b.WriteByte('"')
	return b.Bytes(), nil
}

// checkVariables refuses references to missing variables, and values that would break the
// configuration.
func checkVariables(p runnerscripts.Profile, env []string) error {
	for _, server := range p.MCPServers {
		for _, values := range []map[string]string{server.Env, server.Headers} {
			for key, text := range values {
				for _, m := range agent.Variable.Get().FindAllStringSubmatch(text, -1) {
					value := child.Lookup(env, m[1])
					if value == "" {
						return agent.Invalid("set %s in agent.env: %q of the MCP server %q needs it", m[1], key, server.Name)
					}
					if slices.ContainsFunc([]byte(value), func(b byte) bool { return b < ' ' || b == '"' || b == '\\' }) {
						return agent.Invalid("use another value for %s, without quotes, backslashes and line ends: "+
							"OpenCode cannot put it into %q of the MCP server %q", m[1], key, server.Name)
					}
				}
			}
		}
	}
	return nil
}

// literals converts texts to literals.
func literals(texts []string) []literal {
	list := make([]literal, len(texts))
	for i, text := range texts {
		list[i] = literal(text)
	}
	return list
}

// decodeList decodes a list of a configuration; a missing list is empty.
func decodeList(field string, raw json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	if len(raw) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, agent.Invalid("give agent.config.%s of OpenCode as a list: %v", field, err)
	}
	return list, nil
}
