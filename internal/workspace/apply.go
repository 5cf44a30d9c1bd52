package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/internal/sparse"
)

// ErrConflict means that a file of a folder differs from the original state of the workspace.
var ErrConflict = errors.New("conflict with the folder")

// Apply applies changes from the state old to the state current to a folder of this machine, all or none. It
// returns the applied changes: without changes that the folder already has, and without
// permissions that only became wider, except for git's executable bit.
func Apply(ctx context.Context, dir string, blobs Blobs, old, current Digest, changes []Change) (_ []Change, err error) {
	changes = slices.DeleteFunc(changes, func(c Change) bool {
		return c.Old != nil && c.New != nil && c.Old.sameForGit(*c.New) && !c.Old.narrowedTo(*c.New)
	})
	if len(changes) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	t := &treeChange{root: root, changes: changes}
	if t.old, err = load(ctx, blobs, old); err != nil {
		return nil, err
	}
	if t.current, err = load(ctx, blobs, current); err != nil {
		return nil, err
	}
	err = t.make(ctx)
	return t.changes, err
}

// treeChange applies changes to a folder of this machine, all or none.
type treeChange struct {
	root         *os.Root
	old, current *Snapshot
	changes      []Change
	stage        string     // a folder below root: new files by the index of their change, old ones as N.old
	gone         []folder   // folders that were removed because they were empty
	made         []string   // folders that were created
	moved        []int      // changes whose old file is in stage
	placed       []fileMade // new files that are in their place
	staging      func()     // a test's hook after checks and staging; may be nil
}

// folder is a folder with its permission.
type folder struct {
	name string
	mode fs.FileMode
}

// fileMade is a new file at its final path.
type fileMade struct {
	name string
	info fs.FileInfo
}

// make applies the changes. It checks and stages all of them before it changes anything.
func (t *treeChange) make(ctx context.Context) (err error) {
	if err := t.checkAll(); err != nil || len(t.changes) == 0 {
		return err
	}
	t.stage = ".agentenv-" + uuid.NewString()
	if err := t.root.Mkdir(t.stage, 0o700); err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, t.root.RemoveAll(t.stage))
		}
	}()
	for i, c := range t.changes {
		if err := t.stageNew(i, c); err != nil {
			return inFile(c.Path, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if t.staging != nil {
		t.staging()
	}
	if err := t.commit(); err != nil {
		undone := t.undo()
		if keep = undone != nil; keep {
			undone = fmt.Errorf("bring back what was changed already: %w; the old files are in %s", undone, t.stage)
		}
		return errors.Join(err, undone)
	}
	return nil
}

// staged returns the path of a change's new file in the stage.
func (t *treeChange) staged(i int) string { return path.Join(t.stage, strconv.Itoa(i)) }

// stageNew writes the new file of a change to the stage.
func (t *treeChange) stageNew(i int, c Change) (err error) {
	is, ok := t.current.files[c.Path]
	if !ok {
		return nil
	}
	if is.isLink() {
		return t.root.Symlink(is.Target, t.staged(i))
	}
	mode, exists := t.mode(c.Path)
	f, err := t.root.OpenFile(t.staged(i), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if exists {
		if err := f.Chmod(mode); err != nil { // the umask does not narrow what the folder had
			return err
		}
	}
	w := sparse.NewWriter(f)
	err = t.current.copyTo(w, is)
	return errors.Join(err, w.Close())
}

// mode returns the permission that a file of the workspace gets in the folder, which the umask
// narrows for a new file. No bit is set that the file does not have in the workspace, except
// those that the folder has and that the workspace has not taken away, and except that the owner
// may read it.
func (t *treeChange) mode(name string) (mode fs.FileMode, exists bool) {
	is := t.current.files[name].Mode.Perm()
	was, existed := t.old.files[name]
	info, err := t.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || !existed {
		if is&0o100 == 0 {
			is &^= 0o111 // it is not executable for git
		}
		return is | 0o400, false
	}
	there, before := info.Mode().Perm(), was.Mode.Perm()
	executable := is &^ before & 0o111
	return there&^(before&^is&^0o400) | executable&(there&0o444>>2), true
}

// hasMode reports whether a file of the folder has the permission that it would get.
func (t *treeChange) hasMode(name string) bool {
	info, err := t.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return true
	}
	mode, _ := t.mode(name)
	return info.Mode().Perm() == mode
}

// commit moves the old files to the stage and the new ones to their final paths.
func (t *treeChange) commit() error {
	for i, c := range t.changes {
		if c.Old == nil {
			continue
		}
		if err := t.root.Rename(c.Path, t.staged(i)+".old"); err != nil {
			return inFile(c.Path, err)
		}
		t.moved = append(t.moved, i)
		if err := t.replaceable(t.staged(i)+".old", c.Path); err != nil { // it may have changed since the check
			return inFile(c.Path, err)
		}
	}
	for _, c := range t.changes {
		if c.New == nil {
			t.removeEmpty(path.Dir(c.Path))
		}
	}
	for i, c := range t.changes {
		if _, ok := t.current.files[c.Path]; !ok {
			continue
		}
		if err := t.place(i, c.Path); err != nil {
			return inFile(c.Path, err)
		}
	}
	return nil
}

// removeEmpty removes a folder and its parents while they are empty, as git does.
func (t *treeChange) removeEmpty(dir string) {
	for ; dir != "."; dir = path.Dir(dir) {
		if t.removeFolder(dir) != nil { // not empty
			return
		}
	}
}

// removeFolders removes a folder that contains only folders.
func (t *treeChange) removeFolders(dir string) error {
	folders, err := t.emptyFolders(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(folders) {
		if err := t.removeFolder(name); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeChange) removeFolder(name string) error {
	info, err := t.root.Lstat(name)
	if err != nil {
		return err
	}
	if err := t.root.Remove(name); err != nil {
		return err
	}
	t.gone = append(t.gone, folder{name, info.Mode().Perm()})
	return nil
}

// place moves a new file to its final path, where nothing may be except empty folders.
func (t *treeChange) place(i int, name string) error {
	if err := t.makeFolders(path.Dir(name)); err != nil {
		return err
	}
	info, err := t.root.Lstat(name)
	if err == nil && info.IsDir() {
		if err := t.removeFolders(name); err != nil {
			return err
		}
		_, err = t.root.Lstat(name)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%w: a new file is there", ErrConflict), err)
	}
	if err := t.root.Rename(t.staged(i), name); err != nil {
		return err
	}
	info, err = t.root.Lstat(name)
	t.placed = append(t.placed, fileMade{name, info})
	return err
}

func (t *treeChange) makeFolders(dir string) error {
	if dir == "." {
		return nil
	}
	info, err := t.root.Lstat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%w: %s is no folder there", ErrConflict, dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := t.makeFolders(path.Dir(dir)); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if is, known := t.current.folders[dir]; known {
		mode = is | 0o700 // files come into it
	}
	if err := t.root.Mkdir(dir, mode); err != nil {
		return err
	}
	t.made = append(t.made, dir)
	return nil
}

// undo restores the folder to its state before commit.
func (t *treeChange) undo() error {
	var errs []error
	for _, f := range t.placed {
		if info, err := t.root.Lstat(f.name); err == nil && f.info != nil && os.SameFile(info, f.info) {
			errs = append(errs, t.root.Remove(f.name))
		}
	}
	for i := len(t.made) - 1; i >= 0; i-- {
		_ = t.root.Remove(t.made[i]) // another program may have put something there
	}
	for i := len(t.gone) - 1; i >= 0; i-- {
		dir := t.gone[i]
		errs = append(errs, t.root.Mkdir(dir.name, dir.mode), t.root.Chmod(dir.name, dir.mode))
	}
	for _, i := range t.moved {
		errs = append(errs, t.root.Rename(t.staged(i)+".old", t.changes[i].Path))
	}
	return errors.Join(errs...)
}
