package codex

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// serverStart limits the start of an MCP server. The first prompt waits for the servers.
const serverStart = 30 * time.Second

// serverName matches the names that Codex accepts for MCP servers.
var serverName = agent.Pattern{Expr: `^[A-Za-z0-9_-]+$`}

// serverSettings returns the MCP servers of a profile in the format of Codex's config. The result
// contains the names of variables, never their values.
func serverSettings(s runnerscripts.Session, p runnerscripts.Profile) (map[string]any, error) {
	servers := map[string]any{}
	env := environment(s)
	for i, m := range agent.Servers(s, p) {
		where := fmt.Sprintf("profile.mcp_servers[%d]", i)
		if !serverName.Get().MatchString(m.Name) {
			return nil, agent.Unsupported(`rename %s: Codex takes letters, digits, "-" and "_" only, not %q`, where, m.Name)
		}
		for _, values := range []map[string]string{m.Env, m.Headers} {
			for _, value := range values {
				for _, name := range references(value) {
					if child.Lookup(env, name) == "" {
						return nil, agent.Invalid("give %s in agent.env, which %s refers to", name, where)
					}
				}
			}
		}
		var config map[string]any
		if m.URL == "" {
			config = stdioServer(m)
		} else {
			config = httpServer(m, i)
		}
		config["startup_timeout_sec"] = int(serverStart.Seconds())
		servers[m.Name] = config
	}
	return servers, nil
}

// references returns the names of the variables to which a value refers.
func references(value string) []string {
	var names []string
	for _, m := range agent.Variable.Get().FindAllStringSubmatch(value, -1) {
		names = append(names, m[1])
	}
	return names
}

// stdioServer returns the settings of a server that runs a command. Codex passes variables only
// under their own names, so a shell sets derived values.
func stdioServer(m runnerscripts.MCPServer) map[string]any {
	env := map[string]string{}
	pass := []string{}
	var exports strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		value := m.Env[name]
		refs := references(value)
		pass = append(pass, refs...)
		switch {
		case len(refs) == 0:
			env[name] = value
		case value != "${"+name+"}":
			fmt.Fprintf(&exports, "export %s=%s; ", name, shellValue(value))
		}
	}
	command := m.Command
	if exports.Len() > 0 {
		command = slices.Concat([]string{"/bin/sh", "-c", exports.String() + `exec "$0" "$@"`}, command)
	}
	slices.Sort(pass)
	return map[string]any{
		"command": command[0], "args": command[1:], "env": env, "env_vars": slices.Compact(pass),
	}
}

// shellValue returns a shell word in which the shell expands the variables of value.
func shellValue(value string) string {
	var b strings.Builder
	literal := func(text string) {
		if text != "" {
			b.WriteString("'" + strings.ReplaceAll(text, "'", `'\''`) + "'")
		}
	}
	at := 0
	for _, m := range agent.Variable.Get().FindAllStringIndex(value, -1) {
		literal(value[at:m[0]])
		b.WriteString(`"` + value[m[0]:m[1]] + `"`)
		at = m[1]
	}
	literal(value[at:])
	return b.String()
}

// httpServer returns the settings of a server with a URL, the i-th of the profile.
func httpServer(m runnerscripts.MCPServer, i int) map[string]any {
	plain, secret := map[string]string{}, map[string]string{}
	for n, name := range slices.Sorted(maps.Keys(m.Headers)) {
		value := m.Headers[name]
		switch refs := references(value); {
		case len(refs) == 0:
			plain[name] = value
		case value == "${"+refs[0]+"}":
			secret[name] = refs[0]
		default:
			secret[name] = headerVariable(i, n)
		}
	}
	return map[string]any{"url": m.URL, "http_headers": plain, "env_http_headers": secret}
}

// headerVariable returns the name of the variable for the value of the n-th header of the i-th
// server. Codex can expand only whole values.
func headerVariable(i, n int) string { return fmt.Sprintf("AGENTENV_MCP_%d_HEADER_%d", i, n) }

// headerVariables returns the assignments of these variables for the program's environment.
func headerVariables(s runnerscripts.Session, p runnerscripts.Profile) []string {
	env := environment(s)
	var list []string
	for i, m := range p.MCPServers {
		for n, name := range slices.Sorted(maps.Keys(m.Headers)) {
			value := m.Headers[name]
			if refs := references(value); len(refs) == 0 || value == "${"+refs[0]+"}" {
				continue
			}
			filled := agent.Variable.Get().ReplaceAllStringFunc(value, func(ref string) string {
				return child.Lookup(env, ref[2:len(ref)-1])
			})
			list = append(list, headerVariable(i, n)+"="+filled)
		}
	}
	return list
}
