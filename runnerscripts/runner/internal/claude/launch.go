package claude

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// programName is the program's usual name in PATH.
const programName = "claude"

// programTitle is the program's name in messages.
const programTitle = "Claude Code"

// bypassMode is the permission mode that asks nothing.
const bypassMode = "bypassPermissions"

// check refuses unsupported settings instead of ignoring them.
func check(s runnerscripts.Session) error {
	if len(s.Agent.Config) > 0 && string(s.Agent.Config) != "null" && string(s.Agent.Config) != "{}" {
		return agent.Invalid("leave agent.config out: the agent %q has none", programName)
	}
	if s.Agent.MaxTurns < 0 {
		return agent.Invalid("give agent.max_turns as 0 (no limit) or more, not %d", s.Agent.MaxTurns)
	}
	if _, ok := s.Agent.Env["CLAUDE_CONFIG_DIR"]; ok {
		return agent.Invalid("leave CLAUDE_CONFIG_DIR out of agent.env: the session's transcript is kept there")
	}
	if !agent.IsUUID(s.SessionID) {
		return agent.Invalid("give session_id as a UUID, which Claude Code needs, not %q", s.SessionID)
	}
	return nil
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
			Message: fmt.Sprintf("install Claude Code in the sandbox (npm install -g %s), "+
				"or name its program in agent.command: %v", npmPackage, err),
		}
	}
	return argv, nil
}

// version asks the program for its version, which shows that it can run here.
func version(ctx context.Context, s runnerscripts.Session) (string, error) {
	env := environment(s)
	argv, err := program(s.Agent, env)
	if err != nil {
		return "", err
	}
	if v := child.PackagedVersion(argv, npmPackage); v != "" {
		return v, nil
	}
	out, err := child.Version(ctx, argv, env)
	if err != nil {
		return "", startFailure(err)
	}
	v, title, _ := strings.Cut(out, " ") // "2.1.329 (Claude Code)"
	if title != "("+programTitle+")" {
		return "", startFailure(fmt.Errorf("%s --version says %.200q", argv[0], out))
	}
	return v, nil
}

// launch returns the command that starts or resumes the session.
func launch(s runnerscripts.Session, p runnerscripts.Profile, model, mode string) (command, error) {
	env := environment(s)
	argv, err := program(s.Agent, env)
	if err != nil {
		return command{}, err
	}
	argv = append(argv,
		"--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--permission-prompt-tool", "stdio", "--include-partial-messages")
	argv = append(argv, profileFlags(s, p)...)
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
	return command{
		Command: child.Command{Args: argv, Dir: s.Paths.Workspace, Env: env, Ended: removeSocket},
		resumes: resume,
	}, nil
}

// environment returns the program's whole environment: the runner's, which the sandbox has
// already filtered, overridden by the session's variables.
func environment(s runnerscripts.Session) []string {
	vars := map[string]string{
		"HOME":              s.Paths.Home,
		"CLAUDE_CONFIG_DIR": configDir(s),
		// Otherwise the output of background tasks goes to a folder shared by all sessions of
		// the machine.
		"CLAUDE_CODE_TMPDIR":                       tempDir(s),
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
		"DISABLE_AUTOUPDATER":                      "1",
		"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS":    "1",
	}
	if s.Judged {
		vars["CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR"] = "1" // a command does not say where it runs
	}
	if s.Agent.PermissionMode == bypassMode && os.Geteuid() == 0 {
		vars["IS_SANDBOX"] = "1" // otherwise the program refuses this mode for root
	}
	return child.Environ(vars, agent.GatewayVariables(s), s.Agent.Env)
}

func configDir(s runnerscripts.Session) string { return filepath.Join(s.Paths.Home, ".claude") }
func tempDir(s runnerscripts.Session) string   { return filepath.Join(s.Paths.Home, ".cache", "claude") }

// makeFolders makes the folders that the program's flags name.
func makeFolders(s runnerscripts.Session) error {
	return errors.Join(os.MkdirAll(configDir(s), 0o700), os.MkdirAll(tempDir(s), 0o700))
}
