package codex

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

const (
	agentName = "codex"
	// programName is the program's usual name in PATH.
	programName = "codex"
	// programTitle is the program's display name.
	programTitle = "Codex"
)

// check returns an error for unsupported settings instead of ignoring them.
func check(s runnerscripts.Session, p runnerscripts.Profile) error {
	if !agent.IsUUID(s.SessionID) {
		return agent.Invalid("give session_id as a UUID, not %q", s.SessionID)
	}
	if s.Agent.MaxTurns != 0 {
		return agent.Unsupported("leave agent.max_turns out: Codex has no limit of model turns")
	}
	for _, key := range []string{"CODEX_HOME", "CODEX_SQLITE_HOME"} {
		if _, ok := s.Agent.Env[key]; ok {
			return agent.Invalid("leave %s out of agent.env: the session's transcript is kept there", key)
		}
	}
	if _, err := findMode(modeOf(s.Agent)); err != nil {
		return err
	}
	if err := checkProfile(p); err != nil {
		return err
	}
	_, err := settings(s, p)
	return err
}

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
			Message: fmt.Sprintf("install Codex in the sandbox (npm install -g %s@%s), "+
				"or name its program in agent.command: %v", npmPackage, testedVersion, err),
		}
	}
	argv[0] = native(argv[0])
	return argv, nil
}

// native replaces npm's start script by the executable that the script would start, which saves
// Node, time and memory. npm has a package with the executable for each platform. native returns
// file if it finds no executable.
func native(file string) string {
	script, err := filepath.EvalSymlinks(file)
	if err != nil || filepath.Base(script) != "codex.js" {
		return file
	}
	arch, triple := "x64", "x86_64-"
	if runtime.GOARCH == "arm64" {
		arch, triple = "arm64", "aarch64-"
	}
	if runtime.GOOS == "darwin" {
		triple += "apple-darwin"
	} else {
		triple += "unknown-linux-musl"
	}
	pkg := filepath.Dir(filepath.Dir(script))
	platform := fmt.Sprintf("codex-%s-%s", runtime.GOOS, arch)
	for _, dir := range []string{filepath.Join(pkg, "node_modules", "@openai", platform), filepath.Join(filepath.Dir(pkg), platform)} {
		exe := filepath.Join(dir, "vendor", triple, "bin", "codex")
		if info, err := os.Stat(exe); err == nil && info.Mode().IsRegular() {
			return exe
		}
	}
	return file
}

// version returns the version of the program's npm package. If there is none, version asks the
// program, which also shows that it runs here.
func version(ctx context.Context, s runnerscripts.Session) (string, error) {
	env := environment(s)
	argv, err := program(s.Agent, env)
	if err != nil {
		return "", err
	}
	if v := child.PackagedVersion(argv, npmPackage); v != "" {
		v, _, _ = strings.Cut(v, "-"+runtime.GOOS+"-") // a platform's package appends the platform
		return v, nil
	}
	out, err := child.Version(ctx, argv, env)
	if err != nil {
		return "", startFailure(err)
	}
	v, ok := strings.CutPrefix(out, "codex-cli ")
	if !ok {
		return "", startFailure(fmt.Errorf("its version is %q", out))
	}
	return v, nil
}

func startFailure(err error) error {
	return agent.Failed("check that the program in agent.command is Codex for this platform, "+
		"in a version near %s: %v", testedVersion, err)
}

// launch returns the command that starts the program. Its flags disable what the program would do
// on its own: reports, updates, and fetching the catalogues of plugins and apps from the network.
// They make the program fail if it cannot reach the model, instead of retrying forever. They also
// say whether the program may use the workspace's .codex folder, whose settings, hooks and MCP
// servers run.
func launch(s runnerscripts.Session, p runnerscripts.Profile) (child.Command, error) {
	env := append(environment(s), headerVariables(s, p)...)
	argv, err := program(s.Agent, env)
	if err != nil {
		return child.Command{}, err
	}
	argv = slices.Concat(argv, []string{
		"app-server",
		"-c", "analytics.enabled=false",
		"-c", "check_for_update_on_startup=false",
		"-c", "features.plugins=false",
		"-c", "features.apps=false",
		"-c", "features.unbounded_connection_retries=false",
		"-c", "projects=" + trust(s),
	})
	return child.Command{Args: argv, Dir: s.Paths.Workspace, Env: env}, nil
}

// environment returns the program's complete environment.
func environment(s runnerscripts.Session) []string {
	return child.Environ(map[string]string{
		"HOME":       s.Paths.Home,
		"CODEX_HOME": configDir(s),
		"NO_COLOR":   "1", // on standard error
	}, agent.GatewayVariables(s), s.Agent.Env)
}

func configDir(s runnerscripts.Session) string { return filepath.Join(s.Paths.Home, ".codex") }

// makeFolders creates the folder that CODEX_HOME names.
func makeFolders(s runnerscripts.Session) error { return os.MkdirAll(configDir(s), 0o700) }

// The environment variables that configure the model's API if agent.config does not.
const (
	envKey     = "OPENAI_API_KEY"
	envBaseURL = "OPENAI_BASE_URL"
)

// ownedSettings returns the settings that agent.config must not contain, with their
// replacements.
func ownedSettings() map[string]string {
	return map[string]string{
		"approval_policy":        "agent.permission_mode",
		"sandbox_mode":           "agent.permission_mode",
		"model":                  "agent.model",
		"developer_instructions": "agent.system_prompt",
		"projects":               "agent.trust_workspace",
	}
}

// settings returns the program's settings for the session, in the format of Codex's config.toml.
// agent.config overrides the settings of the profile and of the driver, except those
// without which the program would not ask.
func settings(s runnerscripts.Session, p runnerscripts.Profile) (map[string]any, error) {
	var own map[string]any
	if len(s.Agent.Config) > 0 {
		if err := json.Unmarshal(s.Agent.Config, &own); err != nil {
			return nil, agent.Invalid("give agent.config as a JSON object with settings of Codex's config.toml: %v", err)
		}
	}
	for key, instead := range ownedSettings() {
		if _, ok := own[key]; ok {
			return nil, agent.Invalid("use %s instead of %s in agent.config", instead, key)
		}
	}
	all, err := profileSettings(s, p, own)
	if err != nil {
		return nil, err
	}
	env := environment(s)
	if _, ok := own["model_provider"]; !ok && child.Lookup(env, envKey) != "" {
		base := child.Lookup(env, envBaseURL)
		if base == "" {
			base = "https://api.openai.com/v1"
		}
		// Codex's built-in provider reads keys only from a file.
		all["model_provider"] = "openai-key"
		all["model_providers"] = map[string]any{"openai-key": map[string]any{
			"name": "OpenAI", "base_url": base, "env_key": envKey, "wire_api": "responses",
		}}
	}
	merge(all, own)
	for _, tool := range s.Asks {
		merge(all, map[string]any{"features": map[string]any{unasked[tool]: false}})
	}
	return all, nil
}

// unasked are the program's features that make calls of a portable tool without a question, which it asks about
// otherwise: the terminal, because it takes further commands as input, and the tool that shows images.
var unasked = map[string]string{
	runnerscripts.AsksBash: "unified_exec_tty",
	runnerscripts.AsksRead: "view_image",
}

// trust returns the TOML value of the setting "projects", which says whether the workspace is
// trusted.
func trust(s runnerscripts.Session) string {
	level := "untrusted"
	if s.Agent.TrustWorkspace {
		level = "trusted"
	}
	var projects []string
	for _, dir := range workspaceNames(s) {
		projects = append(projects, fmt.Sprintf("%s = {trust_level = %q}", jsonOf(dir), level))
	}
	return "{" + strings.Join(projects, ", ") + "}"
}

// workspaceNames returns the paths under which Codex may look up the workspace.
func workspaceNames(s runnerscripts.Session) []string {
	names := []string{s.Paths.Workspace}
	if resolved, err := filepath.EvalSymlinks(s.Paths.Workspace); err == nil && resolved != s.Paths.Workspace {
		names = append(names, resolved)
	}
	return names
}

// merge copies the entries of over into all. It merges objects recursively.
func merge(all, over map[string]any) {
	for k, v := range over {
		below, isObject := all[k].(map[string]any)
		if above, ok := v.(map[string]any); ok && isObject {
			merge(below, above)
			continue
		}
		all[k] = v
	}
}
