package claude

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// programName is the program's usual name in PATH.
const programName = "claude"

// bypassMode is the permission mode that asks nothing.
const bypassMode = "bypassPermissions"

// check refuses what this driver cannot do, instead of ignoring it.
func check(s runnerscripts.Session) error {
	if len(s.Agent.Config) > 0 && string(s.Agent.Config) != "null" && string(s.Agent.Config) != "{}" {
		return invalid("leave agent.config out: the agent %q has none", programName)
	}
	if s.Agent.MaxTurns < 0 {
		return invalid("give agent.max_turns as 0 (no limit) or more, not %d", s.Agent.MaxTurns)
	}
	if _, ok := s.Agent.Env["CLAUDE_CONFIG_DIR"]; ok {
		return invalid("leave CLAUDE_CONFIG_DIR out of agent.env: the session's transcript is kept there")
	}
	if !isUUID(s.SessionID) {
		return invalid("give session_id as a UUID, which Claude Code needs, not %q", s.SessionID)
	}
	return nil
}

// program finds what to start: an absolute path and its first arguments.
func program(a runnerscripts.Agent, env []string) ([]string, error) {
	argv := slices.Clone(a.Command)
	if len(argv) == 0 {
		argv = []string{programName}
	}
	file, err := lookPath(argv[0], env)
	if err == nil {
		// It starts in the workspace, which may have a file of that name.
		file, err = filepath.Abs(file)
	}
	if err != nil {
		return nil, &runnerscripts.ScriptFailure{
			Code: runnerscripts.FailAgentMissing,
			Message: fmt.Sprintf("install Claude Code in the sandbox (npm install -g %s), "+
				"or name its program in agent.command: %v", npmPackage, err),
		}
	}
	argv[0] = file
	return argv, nil
}

// version asks the program for its version, which shows that it can run here.
func version(ctx context.Context, s runnerscripts.Session) (string, error) {
	env := environment(s)
	argv, err := program(s.Agent, env)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], "--version")...)
	said := &tail{limit: 4 << 10}
	cmd.Env, cmd.Stderr, cmd.WaitDelay = env, said, drainTime
	out, err := cmd.Output()
	if err != nil {
		return "", startFailure(fmt.Errorf("%s --version: %w: %s", argv[0], err, strings.TrimSpace(said.String())))
	}
	v, _, _ := strings.Cut(strings.TrimSpace(string(out)), " ") // "2.1.329 (Claude Code)"
	return v, nil
}

// versionTimeout is far above the 30 ms that it takes.
const versionTimeout = 30 * time.Second

// lookPath finds a program as the agent's own environment would.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(lookup(env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

func lookup(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}

// launch is the command that starts, or resumes, the session.
func launch(s runnerscripts.Session, model, mode string) (command, error) {
	env := environment(s)
	argv, err := program(s.Agent, env)
	if err != nil {
		return command{}, err
	}
	argv = append(argv,
		"--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--permission-prompt-tool", "stdio", "--include-partial-messages")
	if !s.Agent.TrustWorkspace {
		argv = append(argv, "--setting-sources", "", "--strict-mcp-config")
	}
	if model != "" {
		argv = append(argv, "--model", model)
	}
	if mode != "" {
		argv = append(argv, "--permission-mode", mode)
	}
	if n := s.Agent.MaxTurns; n > 0 {
		argv = append(argv, "--max-turns", strconv.Itoa(n))
	}
	resume, err := mendHistory(s)
	if err != nil {
		return command{}, err
	}
	if resume {
		argv = append(argv, "--resume", s.SessionID)
	} else {
		argv = append(argv, "--session-id", s.SessionID)
	}
	return command{argv: argv, dir: s.Paths.Workspace, env: env, resumes: resume}, nil
}

// environment is the program's whole environment: the runner's own, which the
// sandbox has already reduced to what it was given, and over it what the session
// needs.
func environment(s runnerscripts.Session) []string {
	vars := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok {
			vars[k] = v
		}
	}
	maps.Copy(vars, map[string]string{
		"HOME":              s.Paths.Home,
		"CLAUDE_CONFIG_DIR": configDir(s),
		// Else the output of background tasks goes to a folder that all
		// sessions of the machine share.
		"CLAUDE_CODE_TMPDIR":                       tempDir(s),
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
		"DISABLE_AUTOUPDATER":                      "1",
		"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS":    "1",
	})
	if s.Agent.PermissionMode == bypassMode && os.Geteuid() == 0 {
		vars["IS_SANDBOX"] = "1" // without it root may not use this mode
	}
	maps.Copy(vars, s.Agent.Env)
	env := make([]string, 0, len(vars))
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return env
}

func configDir(s runnerscripts.Session) string { return filepath.Join(s.Paths.Home, ".claude") }
func tempDir(s runnerscripts.Session) string   { return filepath.Join(s.Paths.Home, ".cache", "claude") }

// makeFolders makes the folders that the program is told to use.
func makeFolders(s runnerscripts.Session) error {
	return errors.Join(os.MkdirAll(configDir(s), 0o700), os.MkdirAll(tempDir(s), 0o700))
}

// isUUID reports whether s is a UUID in its usual form.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, r := range s {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if r != '-' {
				return false
			}
		case !strings.ContainsRune("0123456789abcdefABCDEF", r):
			return false
		}
	}
	return true
}
