package gemini

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// program returns the program's absolute path and its first arguments.
func program(a runnerscripts.Agent, env []string) ([]string, error) {
	argv := a.Command
	if len(argv) == 0 {
		argv = []string{programName}
	}
	argv, err := child.Find(argv, env)
	if err != nil {
		return nil, &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAgentMissing,
			Message: fmt.Sprintf("install the Gemini CLI in the sandbox (npm install -g %s), "+
				"or name its program in agent.command: %v", npmPackage, err),
		}
	}
	return argv, nil
}

// launch returns the command that starts the program.
func launch(s runnerscripts.Session, p runnerscripts.Profile, workspace, model string) (child.Command, error) {
	env := environment(s, trusts(s, p))
	argv, err := program(s.Agent, env)
	if err != nil {
		return child.Command{}, err
	}
	if err := writeFiles(s, p); err != nil {
		return child.Command{}, err
	}
	argv = append(argv, "--acp")
	if model != "" {
		argv = append(argv, "--model", model)
	}
	return child.Command{Args: argv, Dir: workspace, Env: env}, nil
}

// environment returns the program's complete environment. trust says whether the program trusts the
// workspace.
func environment(s runnerscripts.Session, trust bool) []string {
	return child.Environ(map[string]string{
		"HOME": s.Paths.Home,
		// Without TMPDIR, the program's error reports go to a folder shared by all sessions.
		"TMPDIR":                     tempDir(s),
		"GEMINI_CLI_NO_RELAUNCH":     "true",
		"GEMINI_CLI_TRUST_WORKSPACE": strconv.FormatBool(trust),
		debugLogVariable:             debugLog,
		"GEMINI_TELEMETRY_ENABLED":   "false",
		"NO_BROWSER":                 "true",
	}, agent.GatewayVariables(s), s.Agent.Env)
}

func configDir(s runnerscripts.Session) string { return filepath.Join(s.Paths.Home, ".gemini") }
func tempDir(s runnerscripts.Session) string   { return filepath.Join(s.Paths.Home, ".cache", "gemini") }

// realWorkspace returns the workspace's path without symbolic links, as the program names it.
func realWorkspace(s runnerscripts.Session) (string, error) {
	dir, err := filepath.EvalSymlinks(s.Paths.Workspace)
	if err != nil {
		return "", fmt.Errorf("find the workspace: %w", err)
	}
	return dir, nil
}

// writeFiles writes the program's settings and the profile, and makes the folder of temporary files,
// which the installation of a server may need.
func writeFiles(s runnerscripts.Session, p runnerscripts.Profile) error {
	files, err := profileFiles(s, p)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(tempDir(s), 0o700), writeSettings(s), agent.WriteProfile(s, files))
}

// writeSettings adds the driver's settings to the user's settings and keeps the others.
func writeSettings(s runnerscripts.Session) error {
	file := filepath.Join(configDir(s), "settings.json")
	set := map[string]any{}
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &set); err != nil {
			return agent.Invalid("correct the settings of the Gemini CLI in the session's home folder: %v", err)
		}
	}
	// Do not delete sessions, and contact no other server.
	put(set, false, "general", "sessionRetention", "enabled")
	put(set, false, "general", "enableAutoUpdate")
	put(set, false, "general", "enableAutoUpdateNotification")
	put(set, false, "privacy", "usageStatisticsEnabled")
	put(set, false, "telemetry", "enabled")
	put(set, !s.Agent.TrustWorkspace, "advanced", "ignoreLocalEnv")
	if _, ok := get(set, "security", "auth", "selectedType"); !ok {
		put(set, authType(s), "security", "auth", "selectedType")
	}
	if data, err = json.MarshalIndent(set, "", "  "); err != nil {
		return err
	}
	return agent.RestoreFile(file, string(data))
}

// authType returns the login method for which the session has credentials.
func authType(s runnerscripts.Session) string {
	if child.Lookup(environment(s, false), "GOOGLE_GENAI_USE_VERTEXAI") == "true" {
		return "vertex-ai"
	}
	return "gemini-api-key"
}

// put sets a value in nested objects. It replaces values on the path that are not objects.
func put(set map[string]any, value any, path ...string) {
	for _, key := range path[:len(path)-1] {
		next, ok := set[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			set[key] = next
		}
		set = next
	}
	set[path[len(path)-1]] = value
}

// get returns a value in nested objects.
func get(set map[string]any, path ...string) (any, bool) {
	for _, key := range path[:len(path)-1] {
		next, ok := set[key].(map[string]any)
		if !ok {
			return nil, false
		}
		set = next
	}
	v, ok := set[path[len(path)-1]]
	return v, ok
}
