package opencode

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// The driver keeps files of its own beside those of the program.
func ownDir(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".config", "agentenv", programName)
}
func tempDir(s runnerscripts.Session) string    { return filepath.Join(ownDir(s), "tmp") }
func configFile(s runnerscripts.Session) string { return filepath.Join(ownDir(s), "opencode.json") }
func promptFile(s runnerscripts.Session) string { return filepath.Join(ownDir(s), "system-prompt.md") }

// permissions are the default rules. They ask about everything that changes something, leaves the
// workspace or comes from an MCP server. The order matters: the last matching rule decides.
const permissions = `{"*":"ask",` +
	`"read":{"*":"allow","*.env":"ask","*.env.*":"ask","*.env.example":"allow"},` +
	`"glob":"allow","grep":"allow","list":"allow","lsp":"allow","skill":"allow",` +
	`"task":"allow","todoread":"allow","todowrite":"allow","question":"allow"}`

// settings are the program's configuration, by key.
type settings map[string]json.RawMessage

// configuration returns the program's configuration: the profile over agent.config over the
// driver's defaults.
func configuration(s runnerscripts.Session, p runnerscripts.Profile) ([]byte, error) {
	conf := settings{
		"$schema":    json.RawMessage(`"https://opencode.ai/config.json"`), // else the program adds it
		"autoupdate": json.RawMessage(`false`),
		"share":      json.RawMessage(`"disabled"`),
		"permission": json.RawMessage(permissions),
	}
	var given settings
	if raw := bytes.TrimSpace(s.Agent.Config); len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, agent.Invalid("give agent.config of OpenCode as the object that opencode.json holds: %v", err)
		}
	}
	if _, ok := given["enabled_providers"]; !ok && !mayUseZen(s) {
		conf["disabled_providers"] = json.RawMessage(`["opencode"]`)
	}
	maps.Copy(conf, given)
	if err := conf.addGateway(s); err != nil {
		return nil, err
	}
	agents, err := agentSettings(s, conf["agent"])
	if err != nil {
		return nil, err
	}
	conf["agent"] = agents
	if err := conf.addProfile(s, p); err != nil {
		return nil, err
	}
	return json.Marshal(conf)
}

// addGateway points the providers of the gateway's APIs to the gateway, which environment variables
// cannot do. agent.config takes precedence.
func (conf settings) addGateway(s runnerscripts.Session) error {
	bases := agent.Gateway(s)
	if len(bases) == 0 {
		return nil
	}
	providers := map[string]map[string]any{}
	if raw := conf["provider"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &providers); err != nil {
			return agent.Invalid("give agent.config.provider of OpenCode as an object of objects: %v", err)
		}
	}
	for api, base := range bases {
		name, version := string(api), ""
		switch api {
		case runnerscripts.APIAnthropic:
			version = "/v1"
		case runnerscripts.APIGemini:
			name, version = "google", "/v1beta"
		}
		if providers[name] == nil {
			providers[name] = map[string]any{}
		}
		options, _ := providers[name]["options"].(map[string]any)
		set := map[string]any{"baseURL": base + version, "apiKey": "{env:" + agent.KeyVariable(api) + "}"}
		maps.Copy(set, options)
		providers[name]["options"] = set
	}
	conf["provider"] = rawJSON(providers)
	return nil
}

// addProfile adds the part of a profile that belongs into the configuration.
func (conf settings) addProfile(s runnerscripts.Session, p runnerscripts.Profile) error {
	rules, err := permissionRules(s, p)
	if err != nil {
		return err
	}
	conf["permission"] = rawJSON(rules.forProgram(s))
	servers, err := serverSettings(s, p, conf["mcp"])
	if err != nil {
		return err
	}
	if servers != nil {
		conf["mcp"] = servers
	}
	for key, texts := range map[string][]string{"instructions": instructions(s, p), "plugin": plugins(s, p)} {
		list, err := decodeList(key, conf[key])
		if err != nil {
			return err
		}
		for _, text := range literals(texts) {
			list = append(list, text.json())
		}
		if len(texts) > 0 {
			conf[key] = rawJSON(list)
		}
	}
	return nil
}

// permissionRules returns the session's rules, including the profile's.
func permissionRules(s runnerscripts.Session, p runnerscripts.Profile) (ruleset, error) {
	var given struct {
		Permission json.RawMessage `json:"permission"`
	}
	_ = json.Unmarshal(s.Agent.Config, &given) // it was decoded before
	if len(given.Permission) == 0 {
		given.Permission = json.RawMessage(permissions)
	}
	rules, err := parseRules(given.Permission)
	if err != nil {
		return nil, agent.Invalid("give agent.config.permission as OpenCode has it: %v", err)
	}
	if len(p.Skills) > 0 {
		rules = rules.with(outside, filepath.Join(s.Paths.Home, skillsDir, "*"), actionAllow)
	}
	return rules.withTools(p)
}

// serverSettings returns the MCP servers of the profile and of agent.config, or nil if the profile
// has none.
func serverSettings(s runnerscripts.Session, p runnerscripts.Profile, given json.RawMessage) (json.RawMessage, error) {
	if len(p.MCPServers) == 0 {
		return nil, nil
	}
	servers := settings{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &servers); err != nil {
			return nil, agent.Invalid("give agent.config.mcp of OpenCode as an object: %v", err)
		}
	}
	for i, m := range agent.Servers(s, p) {
		if _, ok := servers[m.Name]; ok {
			return nil, agent.Invalid("rename profile.mcp_servers[%d]: agent.config.mcp has a server of the name %q, too", i, m.Name)
		}
		servers[m.Name] = rawJSON(serverOf(m))
	}
	return json.Marshal(servers)
}

// serverConfig is an MCP server in the program's configuration.
type serverConfig struct {
	Type        string              `json:"type"`
	Command     []literal           `json:"command,omitempty"`
	Environment map[string]expanded `json:"environment,omitempty"`
	URL         literal             `json:"url,omitempty"`
	Headers     map[string]expanded `json:"headers,omitempty"`
	OAuth       *bool               `json:"oauth,omitempty"`
}

func serverOf(m runnerscripts.MCPServer) serverConfig {
	texts := func(values map[string]string) map[string]expanded {
		list := map[string]expanded{}
		for key, value := range values {
			list[key] = expanded(value)
		}
		return list
	}
	if m.URL == "" {
		return serverConfig{Type: "local", Command: literals(m.Command), Environment: texts(m.Env)}
	}
	return serverConfig{
		Type: "remote", URL: literal(m.URL), Headers: texts(m.Headers), OAuth: new(bool), // there is no user to log in
	}
}

// mayUseZen reports whether the session wants the models of OpenCode's vendor. These models work
// without a key, so by default the program would send them the conversation.
func mayUseZen(s runnerscripts.Session) bool {
	return strings.HasPrefix(s.Agent.Model, "opencode/") || child.Lookup(child.Environ(s.Agent.Env), "OPENCODE_API_KEY") != ""
}

// agentSettings returns the settings of the program's agents. "plan" must not edit files, whatever
// the permissions say. The limit of turns is set here because the program tells it to the model.
func agentSettings(s runnerscripts.Session, given json.RawMessage) (json.RawMessage, error) {
	agents := map[string]settings{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &agents); err != nil {
			return nil, agent.Invalid("give agent.config.agent of OpenCode as an object of objects: %v", err)
		}
	}
	set := func(name, key string, value any) {
		if agents[name] == nil {
			agents[name] = settings{}
		}
		if _, ok := agents[name][key]; !ok {
			agents[name][key] = rawJSON(value)
		}
	}
	set(modePlan, "permission", map[string]string{"edit": actionDeny})
	if n := s.Agent.MaxTurns; n > 0 {
		set(modeBuild, "steps", n)
		set(modePlan, "steps", n)
	}
	return json.Marshal(agents)
}

// writeConfiguration writes the configuration, readable only by the user because it may contain
// keys.
func writeConfiguration(s runnerscripts.Session, p runnerscripts.Profile) error {
	conf, err := configuration(s, p)
	if err != nil {
		return err
	}
	if err := writePlaceholders(s); err != nil {
		return err
	}
	if text := s.Agent.SystemPrompt; text != "" {
		err = writePrivate(promptFile(s), []byte(text+"\n"))
	} else if err = os.Remove(promptFile(s)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, writePrivate(configFile(s), conf))
}

// installedLock is a lock file that marks the program's own package as installed.
const installedLock = `{"lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}`

// writePlaceholders creates placeholders for what the program would otherwise fetch: a package of the
// npm registry, with types for plugins that nothing needs, and ripgrep from GitHub.
func writePlaceholders(s runnerscripts.Session) error {
	dir := filepath.Join(s.Paths.Home, programDir)
	if err := os.MkdirAll(filepath.Join(dir, "node_modules"), 0o700); err != nil {
		return err
	}
	for file, text := range map[string]string{
		filepath.Join(dir, "package-lock.json"): installedLock,
		// The program uses this script only if rg is not in PATH.
		filepath.Join(s.Paths.Home, ".cache", programName, "bin", "rg"): "#!/bin/sh\necho 'install ripgrep (rg) in the sandbox' >&2\nexit 3\n",
	} {
		if _, err := os.Lstat(file); err == nil {
			continue
		}
		if err := errors.Join(writePrivate(file, []byte(text)), os.Chmod(file, 0o700)); err != nil {
			return err
		}
	}
	return nil
}

// instructions returns the files that are part of every request to the model. They include the
// system prompt, because a slash command cannot carry one.
func instructions(s runnerscripts.Session, p runnerscripts.Profile) []string {
	var list []string
	for _, r := range p.Rules {
		list = append(list, filepath.Join(s.Paths.Home, ruleFile(r.Name)))
	}
	if s.Agent.SystemPrompt != "" {
		list = append(list, promptFile(s))
	}
	return list
}

// plugins returns the paths of the profile's plugins for the program.
func plugins(s runnerscripts.Session, p runnerscripts.Profile) []string {
	var list []string
	for _, plugin := range p.Plugins {
		list = append(list, filepath.Join(s.Paths.Home, pluginDir(plugin.Name), pluginEntry(plugin)))
	}
	return list
}
