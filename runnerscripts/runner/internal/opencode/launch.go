package opencode

import (
	"context"
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

// reserved returns the variables that only this driver may set: the transcript and the
// connection to the server depend on them.
func reserved() []string {
	return []string{
		"XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "OPENCODE_DB", "OPENCODE_CONFIG",
		"OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME",
	}
}

// check refuses unsupported settings instead of ignoring them.
func check(s runnerscripts.Session, p runnerscripts.Profile) error {
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
	if err := checkProfile(p); err != nil {
		return err
	}
	if err := checkVariables(p, environment(s, nil)); err != nil {
		return err
	}
	_, err := configuration(s, p)
	return err
}

// parseModel parses "provider/model".
func parseModel(name string) (modelRef, error) {
	provider, model, ok := strings.Cut(name, "/")
	if !ok || provider == "" || model == "" {
		return modelRef{}, agent.Invalid(
			"give the model of OpenCode as provider/model, for example anthropic/claude-sonnet-4-5, not %q", name)
	}
	return modelRef{ProviderID: provider, ModelID: model}, nil
}

// program returns the command that starts the program: an absolute path and its first arguments.
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

// version returns the version of the program's npm package. Without a package it asks the program,
// which also shows that the program can run here.
func version(ctx context.Context, s runnerscripts.Session) (string, error) {
	env := environment(s, nil)
	argv, err := program(s.Agent, env)
	if err != nil {
		return "", err
	}
	if v := child.PackagedVersion(argv, packagePrefix); v != "" {
		return v, nil
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

// environment returns the program's whole environment. The variables in more override the others.
func environment(s runnerscripts.Session, more map[string]string) []string {
	home := s.Paths.Home
	own := map[string]string{
		"HOME":                             home,
		"TMPDIR":                           tempDir(s), // where the program leaves a folder
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
	if !s.Agent.TrustWorkspace {
		own["OPENCODE_DISABLE_PROJECT_CONFIG"] = "1"
		own["OPENCODE_DISABLE_EXTERNAL_SKILLS"] = "1"
	}
	return child.Environ(own, agent.GatewayVariables(s), s.Agent.Env, more)
}

// readingOnly returns the variables for a process that only reads or writes the history: it
// needs no plugins or servers of the profile.
func readingOnly(s runnerscripts.Session) map[string]string {
	return map[string]string{"OPENCODE_PURE": "1", "OPENCODE_CONFIG": filepath.Join(ownDir(s), "none.json")}
}

// writePrivate atomically writes a file that only its owner can read.
func writePrivate(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*") // CreateTemp uses mode 0600
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
