package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// workspacesFolder is the folder of the root with the workspaces of conversations. They are not in the
// session folders, whose names are never used again, so that the next sandbox of a conversation can have its
// workspace at the same path: programs in it store that path.
const workspacesFolder = "workspaces"

// chooseWorkspace sets the path of a new workspace. asked is Config.WorkspacePath. A workspace of the
// user's stays.
func (st *state) chooseWorkspace(asked string) error {
	below := filepath.Join(filepath.Dir(st.Session), workspacesFolder)
	switch {
	case st.Workspace != "", asked == "" && (st.For == "" || st.LeaveFiles):
		return nil
	case asked == "":
		asked = filepath.Join(below, st.ID)
	case !filepath.IsAbs(asked) || strings.ContainsRune(asked, 0):
		return &primitives.SettingError{Setting: "workspace_path", Problem: fmt.Sprintf("%q is not absolute; give an absolute path", asked), Err: fs.ErrInvalid}
	case !st.LeaveFiles && filepath.Dir(filepath.Clean(asked)) != below:
		return &primitives.SettingError{
			Setting: "workspace_path", Problem: "a new workspace is a folder of " + below + "; leave it out, or name a folder that exists as workspace",
			Err: errors.ErrUnsupported,
		}
	}
	st.Workspace, st.Made = filepath.Clean(asked), true
	return nil
}

// makeAttempts bounds the attempts while other programs remove the empty folder of workspaces.
const makeAttempts = 100

// makeWorkspace makes the workspace that chooseWorkspace has chosen.
func (st *state) makeWorkspace(who identity, mode fs.FileMode) error {
	dir, outer := filepath.Dir(st.Workspace), fs.FileMode(0o755)
	if !st.LeaveFiles {
		if outer = 0o700; os.Geteuid() == 0 {
			outer = 0o711 // as the session folder
		}
	}
	var err error
	for range makeAttempts { // the last sandbox of another program removes dir
		if err = os.MkdirAll(dir, outer); err == nil {
			err = os.Mkdir(st.Workspace, mode)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrExist) {
		err = st.useWorkspace()
	}
	if err == nil && who.cred != nil {
		err = os.Chown(st.Workspace, int(who.cred.Uid), int(who.cred.Gid))
	}
	return err
}

// useWorkspace checks a folder that was there before the sandbox.
func (st *state) useWorkspace() error {
	wrong := func(problem string, err error) error {
		st.Workspace, st.Made = "", false // it is not this sandbox's to remove
		return &primitives.SettingError{Setting: "workspace_path", Problem: problem, Err: err}
	}
	name := st.Workspace
	if !st.LeaveFiles {
		return wrong(name+" exists; end the sandbox that works there first, or leave it out", fs.ErrExist)
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return wrong(name+" is not a folder; choose another path", primitives.ErrNotDirectory)
	}
	if err := unix.Access(name, unix.W_OK|unix.X_OK); err != nil {
		return wrong(fmt.Sprintf("user %d may not write to %s; choose another path, or another user", os.Geteuid(), name), fs.ErrPermission)
	}
	return nil
}

// removeWorkspace removes a workspace that New or Fork has made outside of the session folder. Commands
// of the sandbox may have changed the state: only a folder of the workspaces of this root is removed.
func (st *state) removeWorkspace() error {
	if !st.Made || st.LeaveFiles || filepath.Dir(st.Workspace) != filepath.Join(filepath.Dir(st.Session), workspacesFolder) {
		return nil
	}
	err := files.RemoveTree(st.Workspace)
	_ = os.Remove(filepath.Dir(st.Workspace)) // unless it has others
	return err
}

// workspaceEmpty reports whether the workspace of an incomplete sandbox holds nothing.
func (st *state) workspaceEmpty() bool {
	if !st.Made {
		return true // onlyNew has looked
	}
	entries, err := os.ReadDir(st.Workspace)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}

// findWorkspace finds the workspace of a session folder that came from elsewhere. asked is
// Config.WorkspacePath, for a folder whose state was lost.
func (st *state) findWorkspace(asked string) error {
	if st.Workspace != "" {
		return nil
	}
	if _, err := os.Lstat(st.paths().Workspace); err == nil {
		return nil
	}
	if old := (state{Session: st.Session}); old.load() == nil && old.Made {
		st.Workspace, st.Made = old.Workspace, true
		return nil
	}
	return st.chooseWorkspace(asked)
}
