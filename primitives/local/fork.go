package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/agentenv-dev/agentenv/internal/relink"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/treecopy"
)

// Fork implements primitives.Forker. Each copy has a session folder of its own beside the
// original's, and a workspace at a path of its own; a Config.Workspace is copied, too. A symbolic link
// that leads into the original's session folder or workspace by an absolute path leads into the copy's
// instead. Where the file system can, the copies share data until one of them
// changes it. A file that is being written is copied in its state at some moment.
func (s *Sandbox) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	end, err := s.begin("fork", s.id)
	if err != nil {
		return nil, err
	}
	end() // copying takes long: Terminate must not wait for it
	if n < 1 {
		return nil, s.fail("fork", s.id, fmt.Errorf("%w: %d copies; ask for at least one", fs.ErrInvalid, n))
	}
	copies, err := s.forks(ctx, n)
	if err == nil {
		err = s.checkUsable() // the sandbox may have ended during the copy
	}
	if err != nil {
		return nil, s.fail("fork", s.id, errors.Join(err, endCopies(ctx, copies)))
	}
	return copies, nil
}

// forks makes n copies, some at the same time. If one fails, forks cancels the others; it returns
// the copies that were made, too.
func (s *Sandbox) forks(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	work, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	copies := make([]primitives.EnvironmentPrimitive, n)
	turn := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range copies {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			c, err := s.fork(work)
			if err != nil {
				giveUp(err) // the first error is the cause
				return
			}
			copies[i] = c
		})
	}
	all.Wait()
	return copies, context.Cause(work)
}

// endCopies terminates the copies that were made before another one failed.
func endCopies(ctx context.Context, copies []primitives.EnvironmentPrimitive) error {
	var errs []error
	for _, c := range copies {
		if c == nil {
			continue
		}
		_, err := c.Terminate(context.WithoutCancel(ctx))
		errs = append(errs, err, c.Close())
	}
	return errors.Join(errs...)
}

// fork makes one copy.
func (s *Sandbox) fork(ctx context.Context) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	who, err := sandboxUser(s.st.User)
	if err != nil {
		return nil, err
	}
	st := *s.st
	st.own(newID())
	grouped := st.Group != ""
	st.Group = ""
	st.Session = filepath.Join(filepath.Dir(s.paths.Session), st.ID)
	st.Workspace, st.Made, st.Copying = "", false, true
	if err := st.chooseWorkspace(""); err != nil {
		return nil, err
	}
	st.collector.tell(handleOpened, st.Session)
	err = st.announce()
	if err == nil && grouped {
		var gerr error
		if st.Group, gerr = makeGroup(st.ID); gerr != nil {
			st.NoGroup = gerr.Error()
		}
	}
	if err == nil {
		err = s.copyFolders(ctx, &st)
	}
	if err == nil {
		st.Copying = false
		err = st.save()
	}
	if err != nil {
		return nil, errors.Join(err, unmake(&st))
	}
	c, err := open(ctx, &st, who, false)
	if err != nil {
		return nil, errors.Join(err, unmake(&st))
	}
	return c, nil
}

// announce creates the session folder and its state, so that GC finds the folder if this program
// dies before it is complete. No other user can enter the folder until then.
func (st *state) announce() error {
	unlock, err := lockRoot(filepath.Dir(st.Session))
	if err != nil {
		return err
	}
	defer unlock()
	err = os.Mkdir(st.Session, 0o700)
	if err == nil {
		err = os.Mkdir(st.paths().App, 0o700)
	}
	if err == nil {
		err = writeJSON(st.file(stateFile), st)
	}
	if err == nil && st.Made {
		err = st.makeWorkspace(identity{}, 0o700)
	}
	return err
}

// copyFolders copies the session folder, except for the files that describe the sandbox and its
// running commands.
func (s *Sandbox) copyFolders(ctx context.Context, st *state) error {
	old := primitives.PathsIn(s.paths.Session)
	app := filepath.Base(old.App)
	own := map[string]bool{
		path.Join(app, stateFile): true, path.Join(app, lifeFile): true, path.Join(app, execFolder): true,
		filepath.Base(old.Workspace): true,
	}
	into := st.paths().Workspace
	link := func(target string) string {
		target = relink.Target(target, s.paths.Workspace, into)
		return relink.Target(target, s.paths.Session, st.Session)
	}
	opts := treecopy.Options{Skip: func(rel string) bool { return own[rel] }, Link: link}
	if err := treecopy.Copy(ctx, s.paths.Session, st.Session, opts); err != nil {
		return err
	}
	from, err := filepath.EvalSymlinks(s.paths.Workspace)
	if err != nil {
		return err
	}
	return treecopy.Copy(ctx, from, into, treecopy.Options{Link: link})
}
