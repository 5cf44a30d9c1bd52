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
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/treecopy"
)

// Fork implements primitives.Forker. The copies have folders of their own beside
// the original's; symbolic links that lead into the original's folder by an
// absolute path lead into the copy's. A Config.Workspace is copied, too: the
// copies have their own workspaces below their session folders. Where the file
// system can, data is shared until one of them changes it. A file that is being
// written is copied in some state.
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
		err = s.whyDown() // it may have been taken away while it was copied
	}
	if err != nil {
		return nil, s.fail("fork", s.id, errors.Join(err, endCopies(ctx, copies)))
	}
	return copies, nil
}

// forks makes the copies, some at the same time. When one fails the others are
// given up; those that were made are returned, too.
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
				giveUp(err) // the first cause counts
				return
			}
			copies[i] = c
		})
	}
	all.Wait()
	return copies, context.Cause(work)
}

// endCopies takes back what was made when not all could be.
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
	st.Workspace, st.Copying = "", true
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

// announce makes the beginning of a session folder, by which GC finds it if this
// program dies before it is complete. No other user can enter it until then.
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
	return err
}

// copyFolders copies the session folder without what says whose it is and what
// runs in it.
func (s *Sandbox) copyFolders(ctx context.Context, st *state) error {
	old := primitives.PathsIn(s.paths.Session)
	app := filepath.Base(old.App)
	own := map[string]bool{path.Join(app, stateFile): true, path.Join(app, lifeFile): true, path.Join(app, execFolder): true}
	bound := s.st.Workspace != ""
	if bound {
		own[filepath.Base(old.Workspace)] = true
	}
	opts := treecopy.Options{
		Skip: func(rel string) bool { return own[rel] },
		Link: func(target string) string { return moved(target, s.paths.Session, st.Session) },
	}
	if err := treecopy.Copy(ctx, s.paths.Session, st.Session, opts); err != nil || !bound {
		return err
	}
	into := st.paths().Workspace
	opts = treecopy.Options{Link: func(target string) string { return moved(target, s.st.Workspace, into) }}
	from, err := filepath.EvalSymlinks(s.st.Workspace)
	if err != nil {
		return err
	}
	return treecopy.Copy(ctx, from, into, opts)
}

// moved is where a link leads in the copy of the folder from.
func moved(target, from, to string) string {
	rest, ok := strings.CutPrefix(target, from)
	if !ok || rest != "" && rest[0] != os.PathSeparator {
		return target
	}
	return to + rest
}
