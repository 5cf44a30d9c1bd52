package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// Adopt makes a sandbox of the session folder id below cfg.Root, and keeps all files in it. Use it
// for a folder that came with a copy of a whole file system: the sandbox that the folder belonged
// to must no longer exist. Adopt removes what is recorded about that sandbox, its processes and its
// durable commands; the settings are those of cfg, except for Config.WorkspacePath: the workspace stays
// where it is. If Adopt fails the files stay as they are.
//
// A folder that is not there, or lacks one of a sandbox's folders, is
// fs.ErrNotExist; other errors are those of [New].
func Adopt(ctx context.Context, cfg Config, id string) (*Sandbox, error) {
	s, err := adopt(ctx, cfg, id)
	if err != nil {
		return nil, wrap("adopt", id, err)
	}
	return s, nil
}

func adopt(ctx context.Context, cfg Config, id string) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !isID(id) {
		return nil, fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)
	}
	root, who, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	st := newState(cfg)
	st.Session = filepath.Join(root, id)
	st.own(id)
	if err := st.findWorkspace(cfg.WorkspacePath); err != nil {
		return nil, err
	}
	unlock, err := lockRoot(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := st.forget(); err != nil {
		return nil, err
	}
	st.collector.tell(handleOpened, st.Session)
	if st.Group, err = makeGroup(st.ID); err != nil {
		st.NoGroup = err.Error()
	}
	if err = st.save(); err == nil {
		var s *Sandbox
		if s, err = open(ctx, &st, who, cfg.ReapOrphans); err == nil {
			return s, nil
		}
	}
	if st.Group != "" {
		err = errors.Join(err, cgroup.Remove(st.Group))
	}
	st.collector.tell(sandboxGone, st.Session)
	return nil, err
}

// forget removes the records of another sandbox from a session folder, which must be complete
// otherwise.
func (st *state) forget() error {
	for _, dir := range st.paths().All() {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() && dir != st.Workspace {
			return fmt.Errorf("%s: %w", dir, primitives.ErrNotDirectory)
		}
	}
	for _, name := range []string{lifeFile, stateFile, execFolder} {
		if err := files.RemoveTree(st.file(name)); err != nil {
			return err
		}
	}
	return nil
}
