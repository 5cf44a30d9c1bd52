package configfile

import (
	"errors"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// claudeSettings is the part of Claude Code's settings.json that a profile can hold
// (https://docs.anthropic.com/en/docs/claude-code/settings).
type claudeSettings struct {
	Schema      string `json:"$schema,omitempty"`
	Model       string `json:"model,omitempty"`
	Permissions struct {
		Allow       []string `json:"allow,omitempty"`
		Deny        []string `json:"deny,omitempty"`
		DefaultMode string   `json:"defaultMode,omitempty"`
	} `json:"permissions,omitzero"`
	Hooks map[string][]claudeHooks `json:"hooks,omitempty"`
}

type claudeHooks struct {
	Matcher string `json:"matcher,omitempty"`
	Hooks   []struct {
		Type    string `json:"type"`
		Command string `json:"command"`
		Timeout int    `json:"timeout,omitempty"`
	} `json:"hooks"`
}

// settings reads a settings.json. A setting that a profile cannot hold is an error, because it
// would be lost.
func (l *profileFolder) settings(name string) {
	data, found := l.content(name)
	if !found {
		return
	}
	var s claudeSettings
	if err := errors.Join(duplicateKeys(data), l.reader.Decode(data, &s, "")); err != nil {
		l.fail(name, "%w", err)
		return
	}
	p := &l.profile
	if p.Model == "" {
		p.Model = s.Model
	}
	if p.PermissionMode == "" {
		p.PermissionMode = s.Permissions.DefaultMode
	}
	p.AllowedTools = append(p.AllowedTools, s.Permissions.Allow...)
	p.DeniedTools = append(p.DeniedTools, s.Permissions.Deny...)
	for _, event := range sortedKeys(s.Hooks) {
		for _, group := range s.Hooks[event] {
			for _, h := range group.Hooks {
				if h.Type != "command" {
					l.fail(name, "leave out the hook of %s of the type %q: only those of the type command are supported", event, h.Type)
				}
				p.Hooks = append(p.Hooks, runnerscripts.Hook{
					Event: event, Matcher: group.Matcher, Command: h.Command, TimeoutSeconds: h.Timeout,
				})
			}
		}
	}
}

// claudeServer is a server in a .mcp.json.
type claudeServer struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// servers reads a .mcp.json.
func (l *profileFolder) servers(name string) {
	data, found := l.content(name)
	if !found {
		return
	}
	var file struct {
		Servers map[string]claudeServer `json:"mcpServers"`
	}
	if err := errors.Join(duplicateKeys(data), l.reader.Decode(data, &file, "")); err != nil {
		l.fail(name, "%w", err)
		return
	}
	for _, server := range sortedKeys(file.Servers) {
		s := file.Servers[server]
		m := runnerscripts.MCPServer{Name: server, Env: s.Env, URL: s.URL, Headers: s.Headers}
		if s.Command != "" {
			m.Command = append([]string{s.Command}, s.Args...)
		}
		switch {
		case s.Type != "" && s.Type != "http" && s.Type != "stdio":
			l.fail(name, "give the server %q the type stdio or http: %q is not supported", server, s.Type)
		case s.Type == "stdio" && s.Command == "":
			l.fail(name, "give the server %q of the type stdio a command", server)
		case s.Type == "http" && s.URL == "":
			l.fail(name, "give the server %q of the type http a url", server)
		case len(s.Args) > 0 && s.Command == "":
			l.fail(name, "give the server %q a command for its args", server)
		}
		l.profile.MCPServers = append(l.profile.MCPServers, m)
	}
}
