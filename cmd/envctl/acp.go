package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/acpserver"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// acpFlags are the flags of acp.
type acpFlags struct {
	target
	makeFlags
	agentFlags
}

func (a *app) newACPCmd() *cobra.Command {
	f := &acpFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "acp [flags]",
		Short: "Serve an agent in sandboxes to an editor",
		Long: `Serve an agent in sandboxes to an editor, which speaks the Agent Client Protocol on
standard input and output. Each of the editor's sessions gets a sandbox of its own, whose
workspace is the session's folder: the folder itself in a local sandbox and in a
container, where it has the same path, and a copy of it, without .git and what git
ignores, at Modal, where nothing is copied back. A container's commands run as the
folder's owner, if the configuration names no user, and cannot change what git and editors
would execute there, see docs/docker.md. The editor answers what the agent
asks, chooses the mode, and adds MCP servers, whose commands run in the sandbox.

All sandboxes end when the editor closes standard input. The sessions are stored as those of
'envctl run': the editor lists and loads them later, and 'envctl sessions ls' shows them. What
the protocol has no word for is logged with --verbose, the agent's own lines included, which
hold the conversation.`,
		Example: `  envctl acp --agent claude --sandbox docker

  # the settings.json of Zed
  {
    "agent_servers": {
      "agentenv": {
        "command": "envctl",
        "args": ["acp", "--agent", "claude", "--sandbox", "docker"]
      }
    }
  }`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.target.flags(cmd)
	f.envFlag(cmd)
	f.makeFlags.flags(cmd)
	f.agentFlags.flags(cmd)
	return cmd
}

func (f *acpFlags) run(ctx context.Context) (err error) {
	cfg, err := f.configure(ctx)
	if err != nil {
		return err
	}
	if term.IsTerminal(f.app.in) {
		fmt.Fprintln(f.app.err, "envctl acp is for editors: it waits for the Agent Client Protocol on standard input; see 'envctl acp --help'")
	}
	st, closeStore, _, err := f.app.storeOfRuns(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	tools := f.app.delegates(cfg, unasked) // the editor does not show them
	cfg.AgentTools = tools.Tools
	host, err := session.NewHost(session.HostConfig{Store: st, Session: session.Config{Environment: environment.Config{
		AgentTools:   tools.Tools,
		OnPermission: environment.AnswerLater, PermissionTimeout: -1, Logger: cfg.Logger, // the editor asks the user, who may take any time
		Agent: environment.Agent{Env: cfg.Agent.Env}, // which no session stores
	}}})
	if err != nil {
		return err
	}
	tools.Use(host)
	return acpserver.Serve(ctx, acpserver.Config{
		Name: "agentenv", Title: fmt.Sprintf("agentenv (%s, %s)", cfg.Agent.Name, cfg.Sandbox.Type), Version: currentVersion().Version,
		Host: host, EndHost: true, Logger: cfg.Logger,
		Directories: cfg.Sandbox.UsesHostFolder() && !cfg.Sandbox.HasImage(), // the agent works on this machine
		Modes:       modesOf(cfg),
		Configure: func(_ context.Context, r acpserver.Request) (session.Config, error) {
			if err := checkFolder(r.Folder); err != nil {
				return session.Config{}, err
			}
			own := inFolder(cfg, r.Folder)
			own.PermissionTimeout = -1
			own.Profile.MCPServers = slices.Concat(own.Profile.MCPServers, r.Servers)
			return session.Config{Environment: own}, nil
		},
	}, acpserver.Lines(f.app.in, f.app.out))
}

// modesOf returns a function that returns the permission modes of an agent. cfg is the configuration.
func modesOf(cfg environment.Config) func(string) []string {
	return func(name string) []string {
		switch {
		case !cfg.PermissionLimits.IsZero(): // which are no part of a session's configuration
			return nil
		case name == cfg.Agent.Name:
			return agentModes(cfg.Agent)
		}
		return agentModes(runnerscripts.Agent{Name: name})
	}
}

// checkFolder returns an error if a session cannot work in a folder.
func checkFolder(cwd string) error {
	switch info, err := os.Stat(cwd); {
	case errors.Is(err, os.ErrNotExist):
		return acpserver.Invalid("cwd: %s does not exist; make the folder first, or give another one", cwd)
	case err != nil:
		return acpserver.Invalid("cwd: %v; give a folder that can be read", err)
	case !info.IsDir():
		return acpserver.Invalid("cwd: %s is not a folder; give one", cwd)
	}
	// A session could change a symbolic link, and so the folder of the next session.
	if resolved, err := filepath.EvalSymlinks(cwd); err != nil || resolved != filepath.Clean(cwd) {
		return acpserver.Invalid("cwd: symbolic links lead from %s to %s; give the folder's real path", cwd, resolved)
	}
	return nil
}

// configure returns the configuration of the file, overridden by the flags. It rejects settings
// that the editor decides.
func (f *acpFlags) configure(ctx context.Context) (environment.Config, error) {
	cfg, err := f.loadNew(ctx, &f.makeFlags)
	if err != nil {
		return cfg, err
	}
	if err := f.agentFlags.apply(ctx, f.config, &cfg); err != nil {
		return cfg, err
	}
	switch s := cfg.Sandbox; {
	case len(cfg.Workspace) > 0, s.Workspace != "":
		return cfg, usagef("workspace: the editor's folder is the workspace; remove it from the configuration")
	case s.Keep:
		return cfg, usagef("sandbox.keep: sandboxes end with their sessions; remove it from the configuration")
	}
	cfg.Raw = cfg.Raw || f.log.verbose
	return cfg, nil
}

// inFolder returns the configuration with a folder of the editor as the workspace.
func inFolder(cfg environment.Config, folder string) environment.Config {
	// The editor shows changes itself, so do not read the whole folder to find them.
	cfg.IgnoreChanges = []string{"*"}
	if !cfg.Sandbox.UsesHostFolder() {
		cfg.Workspace = []environment.Source{{Folder: &environment.Folder{Path: folder, Gitignore: true}}}
		return cfg
	}
	cfg.Sandbox.Workspace = folder
	if cfg.Sandbox.HasImage() { // an image has its own paths and users
		cfg.Sandbox.WorkspacePath, cfg.Sandbox.User = folder, firstOf(cfg.Sandbox.User, owner(folder))
	}
	return cfg
}

// owner returns the user and group of a folder's owner, as a container takes them. For root it
// returns "", so that the image's own user applies.
func owner(folder string) string {
	info, err := os.Stat(folder)
	if err != nil {
		return "" // the sandbox reports the error
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}
