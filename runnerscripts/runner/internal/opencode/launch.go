package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// programName is the program's usual name in PATH.
const programName = "opencode"

// reserved are the variables that this driver sets: the session's transcript and
// the way to its server depend on them.
func reserved() []string {
	return []string{
		"XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "OPENCODE_DB", "OPENCODE_CONFIG",
		"OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME",
	}
}

// check refuses what this driver cannot do, instead of ignoring it.
func check(s runnerscripts.Session) error {
	if s.Agent.MaxTurns < 0 {
		return agent.Invalid("give agent.max_turns as 0 (no limit) or more, not %d", s.Agent.MaxTurns)
	}
	for _, name := range reserved() {
		if _, ok := s.Agent.Env[name]; ok {
			return agent.Invalid("leave %s out of agent.env: the session's own folders and server depend on it; "+
				"what belongs into opencode.json can be given as agent.config", name)
		}
	}
	if m := s.Agent.Model; m != "" {
		if _, err := parseModel(m); err != nil {
			return err
		}
	}
	_, err := configuration(s)
	return err
}

// parseModel reads "provider/model".
func parseModel(name string) (modelRef, error) {
	provider, model, ok := strings.Cut(name, "/")
	if !ok || provider == "" || model == "" {
		return modelRef{}, agent.Invalid(
			"give the model of OpenCode as provider/model, for example anthropic/claude-sonnet-4-5, not %q", name)
	}
	return modelRef{ProviderID: provider, ModelID: model}, nil
}

// program finds what to start: an absolute path and its first arguments.
func program(a runnerscripts.Agent, env []string) ([]string, error) {
	argv := a.Command
	if len(argv) == 0 {
		argv = []string{programName}
	}
	argv, err := child.Find(argv, env)
	if err != nil {
		return nil, &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAgentMissing,
			Message: "install OpenCode in the sandbox (npm install -g " + npmPackage +
				"), or name its program in agent.command: " + err.Error(),
		}
	}
	return argv, nil
}

// version asks the program for its version, which shows that it can run here.
func version(ctx context.Context, s runnerscripts.Session) (string, error) {
	env := environment(s, "")
	argv, err := program(s.Agent, env)
	if err != nil {
		return "", err
	}
	v, err := child.Version(ctx, argv, env)
	if err != nil {
		return "", startFailure(err)
	}
	return v, nil
}

func startFailure(err error) error {
	return agent.Failed("check that the program in agent.command is OpenCode for this platform, and its settings in agent.config: %v", err)
}

// environment is the program's whole environment.
func environment(s runnerscripts.Session, password string) []string {
	home := s.Paths.Home
	own := map[string]string{
		"HOME":                             home,
		"XDG_CONFIG_HOME":                  filepath.Join(home, ".config"),
		"XDG_DATA_HOME":                    filepath.Join(home, ".local", "share"),
		"XDG_STATE_HOME":                   filepath.Join(home, ".local", "state"),
		"XDG_CACHE_HOME":                   filepath.Join(home, ".cache"),
		"OPENCODE_CONFIG":                  configFile(s),
		"OPENCODE_DISABLE_AUTOUPDATE":      "1",
		"OPENCODE_DISABLE_MODELS_FETCH":    "1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD":    "1",
		"OPENCODE_DISABLE_SHARE":           "1",
		"OPENCODE_DISABLE_CLAUDE_CODE":     "1",
		"OPENCODE_ENABLE_QUESTION_TOOL":    "1",
		"OPENCODE_SERVER_USERNAME":         serverUser,
		"OPENCODE_DISABLE_TERMINAL_TITLE":  "1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
	}
	if password != "" {
		own["OPENCODE_SERVER_PASSWORD"] = password
	}
	if !s.Agent.TrustWorkspace {
		own["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
		own["OPENCODE_DISABLE_EXTERNAL_SKILLS"] = "1"
	}
	return child.Environ(own, s.Agent.Env)
}

// The driver keeps files of its own beside those of the program.
func ownDir(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".config", "agentenv", programName)
}
func configFile(s runnerscripts.Session) string { return filepath.Join(ownDir(s), "opencode.json") }

// permissions ask for everything that changes something, leaves the workspace or
// comes from an MCP server. The order counts: the last one that fits decides.
const permissions = `{"*":"ask",` +
	`"read":{"*":"allow","*.env":"ask","*.env.*":"ask","*.env.example":"allow"},` +
	`"glob":"allow","grep":"allow","list":"allow","lsp":"allow","skill":"allow",` +
	`"task":"allow","todoread":"allow","todowrite":"allow","question":"allow"}`

// configuration is the program's configuration: the user's own, from agent.config,
// over what this driver wants.
func configuration(s runnerscripts.Session) ([]byte, error) {
	conf := map[string]json.RawMessage{
		"autoupdate": json.RawMessage(`false`),
		"share":      json.RawMessage(`"disabled"`),
		"permission": json.RawMessage(permissions),
	}
	var given map[string]json.RawMessage
	if raw := bytes.TrimSpace(s.Agent.Config); len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, agent.Invalid("give agent.config of OpenCode as the object that opencode.json holds: %v", err)
		}
	}
	if _, ok := given["enabled_providers"]; !ok && !mayUseZen(s) {
		conf["disabled_providers"] = json.RawMessage(`["opencode"]`)
	}
	for key, value := range given {
		conf[key] = value
	}
	agents, err := agentSettings(s, conf["agent"])
	if err != nil {
		return nil, err
	}
	conf["agent"] = agents
	return json.Marshal(conf)
}

// mayUseZen reports whether the session wants the models of OpenCode's own
// makers. They work without a key, so without any setting the program would send
// them the conversation.
func mayUseZen(s runnerscripts.Session) bool {
	return strings.HasPrefix(s.Agent.Model, "opencode/") || child.Lookup(child.Environ(s.Agent.Env), "OPENCODE_API_KEY") != ""
}

// agentSettings are the settings of the program's agents: "plan" must not edit
// whatever the permissions say, and a limit of turns is told to the model.
func agentSettings(s runnerscripts.Session, given json.RawMessage) (json.RawMessage, error) {
	agents := map[string]map[string]json.RawMessage{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &agents); err != nil {
			return nil, agent.Invalid("give agent.config.agent of OpenCode as an object of objects: %v", err)
		}
	}
	set := func(name, key string, value any) {
		if agents[name] == nil {
			agents[name] = map[string]json.RawMessage{}
		}
		if _, ok := agents[name][key]; !ok {
			agents[name][key], _ = json.Marshal(value) // a number, or strings
		}
	}
	set(modePlan, "permission", map[string]string{"edit": "deny"})
	if n := s.Agent.MaxTurns; n > 0 {
		set(modeBuild, "steps", n)
		set(modePlan, "steps", n)
	}
	return json.Marshal(agents)
}

// writeConfiguration writes the configuration, which may hold keys, for the user
// alone.
func writeConfiguration(s runnerscripts.Session) error {
	conf, err := configuration(s)
	if err != nil {
		return err
	}
	return writePrivate(configFile(s), conf)
}

// writePrivate writes a whole file, or nothing, that its owner alone can read.
func writePrivate(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
