package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

func (a *app) setupSession(ctx context.Context) error {
	req, err := request[runnerscripts.SetupRequest](ctx, runnerscripts.NewLineReader(a.stdin, runnerscripts.MaxTranscript))
	if err != nil {
		return err
	}
	driver, err := a.driver(req.Agent.Name)
	if err != nil {
		return err
	}
	if req.Agent, err = driver.Recipe().Resolve(req.Agent, req.Profile); err != nil {
		return err
	}
	req.Profile.DeniedTools = agent.Withheld(driver, req.Session, req.Profile)
	if err := makeFolders(req.Paths); err != nil {
		return err
	}
	if err := writeWorkspace(ctx, req.Paths.Workspace, req.Files, false); err != nil {
		return err
	}
	if err := writeWorkspace(ctx, req.Paths.Workspace, req.Profile.Files, true); err != nil {
		return err
	}
	var data runnerscripts.SetupData
	err = a.guarded(func() (err error) {
		data, err = handoff.SetUp(ctx, a.driver, req)
		return err
	})
	if err == nil {
		err = checkVersion(driver.Recipe(), data.AgentVersion)
	}
	if err != nil {
		return err
	}
	return a.finish(data)
}

// checkVersion refuses an agent that is too old.
func checkVersion(r runnerscripts.Recipe, version string) error {
	if !r.TooOld(version) {
		return nil
	}
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailAgentOld,
		Message: fmt.Sprintf("the program of the agent %q has version %s, and %s is the oldest that is known to work; "+
			"install %s with 'npm install -g %s', with 'envctl agents install %s ID' or, from Go, with Environment.InstallAgent",
			r.Agent, version, r.Minimum, r.Version, strings.Join(r.NPM, " "), r.Agent),
	}
}

func makeFolders(p primitives.Paths) error {
	for _, dir := range p.All() {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the session's folders: %w", err)
		}
	}
	return nil
}

// writeWorkspace writes files into the workspace, and nothing outside of it. With keep it leaves
// existing files unchanged.
func writeWorkspace(ctx context.Context, dir string, files []runnerscripts.WorkspaceFile, keep bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the workspace: %w", err)
	}
	defer root.Close()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if keep {
			if _, err := root.Lstat(f.Path); err == nil {
				continue
			}
		}
		if err := writeFile(root, f); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root *os.Root, f runnerscripts.WorkspaceFile) error {
	name := path.Clean(f.Path)
	if f.Path == "" || !fs.ValidPath(name) || name == "." {
		return &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailInvalidRequest,
			Message: fmt.Sprintf("give a path inside the workspace, relative to it: %q is none", f.Path),
		}
	}
	mode := f.Mode.Perm()
	if mode == 0 {
		mode = 0o644
	}
	err := root.MkdirAll(path.Dir(name), 0o755)
	if info, serr := root.Stat(name); serr == nil && !info.Mode().IsRegular() {
		err = errors.New("it is there and not a regular file") // a FIFO would block the script
	}
	if err == nil {
		err = root.WriteFile(name, f.Data(), mode)
	}
	if err == nil {
		// Chmod ignores the umask, and sets the mode of an existing file, too.
		err = root.Chmod(name, mode)
	}
	if err != nil {
		return &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailInvalidRequest,
			Message: fmt.Sprintf("workspace file %q cannot be written inside the workspace: %v", f.Path, err),
		}
	}
	return nil
}
