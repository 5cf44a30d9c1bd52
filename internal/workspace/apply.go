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
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/internal/sparse"
	"github.com/agentenv-dev/agentenv/primitives"
)

// ErrConflict means that a file of a folder differs from the original state of the workspace.
var ErrConflict = errors.New("conflict with the folder")

// Apply applies changes from the state old to the state current to a folder of this machine, all or none. It
// returns the applied changes: without changes that the folder already has, and without
// permission changes that git does not track.
func Apply(ctx context.Context, dir string, blobs Blobs, old, current Digest, changes []Change) (_ []Change, err error) {
	changes = slices.DeleteFunc(changes, func(c Change) bool {
		return c.Old != nil && c.New != nil && c.Old.sameForGit(*c.New)
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
	gone         []string   // folders that were removed because they were empty
	made         []string   // folders that were created
	moved        []int      // changes whose old file is in stage
	placed       []fileMade // new files that are in their place
	staging      func()     // a test's hook after checks and staging; may be nil
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

// maxConflicts is how many conflicts an error names.
const maxConflicts = 10

// checkAll checks all changes and drops those that the folder already has.
func (t *treeChange) checkAll() error {
	var conflicts error
	var todo []Change
	found := 0
	for _, c := range t.changes {
		done, err := t.check(c)
		switch {
		case err != nil && !errors.Is(err, ErrConflict):
			return inFile(c.Path, err)
		case err != nil && found == 0:
			found, conflicts = 1, inFile(c.Path, err)
		case err != nil:
			if found++; found <= maxConflicts {
				conflicts = fmt.Errorf("%w; %w", conflicts, inFile(c.Path, err))
			}
		case !done:
			todo = append(todo, c)
		}
	}
	if found > maxConflicts {
		return fmt.Errorf("%w; and %d more", conflicts, found-maxConflicts)
	}
	t.changes = todo
	return conflicts
}

// check returns an error for a change that leaves the folder, or whose file has changed there.
// It reports whether the folder already has the change.
func (t *treeChange) check(c Change) (done bool, _ error) {
	if inGit(c.Path) {
		return false, fmt.Errorf("%w: it is in a .git folder", primitives.ErrPathEscape)
	}
	is, wanted := t.current.files[c.Path]
	if !wanted && t.isGone(c.Path) {
		return true, nil
	}
	if err := t.checkFolders(c.Path); err != nil {
		return false, err
	}
	if wanted && is.isLink() && !staysInside(c.Path, is.Target) {
		return false, fmt.Errorf("%w: a symbolic link to %s", primitives.ErrPathEscape, is.Target)
	}
	if wanted && t.unchanged(c.Path, is) == nil {
		return true, nil
	}
	if was, existed := t.old.files[c.Path]; existed {
		return false, t.unchanged(c.Path, was)
	}
	info, err := t.root.Lstat(c.Path)
	switch {
	case isMissing(err):
		return false, nil
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, fmt.Errorf("%w: a new file is there", ErrConflict)
	case t.empties(c.Path):
		return false, nil
	}
	_, err = t.emptyFolders(c.Path) // empty folders are not in snapshots
	return false, err
}

// isGone reports whether no file is at a path: there is nothing, or a folder that already has a
// file of the workspace.
func (t *treeChange) isGone(name string) bool {
	info, err := t.root.Lstat(name)
	if isMissing(err) {
		return true
	}
	if err != nil || !info.IsDir() {
		return false
	}
	for is := range t.current.files {
		if !strings.HasPrefix(is, name+"/") {
			continue
		}
		if _, err := t.root.Lstat(is); err == nil {
			return true
		}
	}
	return false
}

// checkFolders returns an error if a parent of the path is not a folder and is not removed.
func (t *treeChange) checkFolders(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		info, err := t.root.Lstat(dir)
		switch {
		case isMissing(err): // isMissing also covers a file above dir
		case err != nil:
			return err
		case !info.IsDir() && !t.removed(dir):
			return fmt.Errorf("%w: %s is no folder there", ErrConflict, dir)
		}
	}
	return nil
}

// inGit reports whether a path is a .git folder or in one. It ignores case, as some file
// systems do.
func inGit(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.EqualFold(part, ".git") {
			return true
		}
	}
	return false
}

// staysInside reports whether a link leads to a path in the folder, whatever links are on the
// way. Therefore only the beginning of the target may lead up.
func staysInside(name, target string) bool {
	down := target
	for strings.HasPrefix(down, "../") {
		down = down[len("../"):]
	}
	full := path.Join(path.Dir(name), target)
	return target != "" && !path.IsAbs(target) && !LeadsOut(full) && !inGit(full) &&
		(down == ".." || !strings.Contains("/"+down+"/", "/../"))
}

// removed reports whether the changes remove the file at a path, so that a folder may replace
// it.
func (t *treeChange) removed(name string) bool {
	_, was := t.old.files[name]
	_, is := t.current.files[name]
	return was && !is
}

// empties reports whether the workspace had files in a folder and has none now.
func (t *treeChange) empties(dir string) bool {
	had := false
	for name := range t.old.files {
		if strings.HasPrefix(name, dir+"/") {
			if _, is := t.current.files[name]; is {
				return false
			}
			had = true
		}
	}
	return had
}

// emptyFolders returns a folder and all folders in it, parents first. A folder that contains
// anything else is ErrConflict.
func (t *treeChange) emptyFolders(dir string) (folders []string, _ error) {
	err := fs.WalkDir(t.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			return fmt.Errorf("%w: a folder is there now", ErrConflict)
		}
		folders = append(folders, name)
		return err
	})
	return folders, err
}

// isMissing reports whether err means that nothing is at a path, or that a parent is a file.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// unchanged checks that a file is still as described by was.
func (t *treeChange) unchanged(name string, was Entry) error {
	info, err := t.root.Lstat(name)
	if isMissing(err) {
		return fmt.Errorf("%w: it was removed there", ErrConflict)
	}
	if err != nil {
		return err
	}
	is := Entry{Mode: info.Mode(), Size: info.Size()}
	switch {
	case is.isLink():
		if is.Target, err = t.root.Readlink(name); err != nil {
			return err
		}
		is.Size = int64(len(is.Target))
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is no file there now", ErrConflict)
	case is.Size == was.Size:
		if is.digest, err = t.digest(name); err != nil {
			return err
		}
	}
	switch {
	case !is.sameContent(was):
		return fmt.Errorf("%w: its content was changed there", ErrConflict)
	case gitMode(is) != gitMode(was):
		return fmt.Errorf("%w: its mode was changed there", ErrConflict)
	}
	return nil
}

func (t *treeChange) digest(name string) (Digest, error) {
	f, err := t.root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	digest, _, _, err := new(cutter).cut(f, func(Digest, []byte) error { return nil })
	return digest, err
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
	mode, old := fs.FileMode(0o666), fs.FileMode(0)
	if info, err := t.root.Lstat(c.Path); err == nil && info.Mode().IsRegular() {
		old = info.Mode().Perm()
	}
	if is.Mode&0o100 != 0 {
		mode = 0o777
	}
	f, err := t.root.OpenFile(t.staged(i), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if old != 0 {
		if mode = old &^ 0o111; is.Mode&0o100 != 0 {
			mode = old | old&0o444>>2
		}
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	w := sparse.NewWriter(f)
	err = t.current.copyTo(w, is)
	return errors.Join(err, w.Close())
}

// commit moves the old files to the stage and the new ones to their final paths.
func (t *treeChange) commit() error {
	for i, c := range t.changes {
		was, existed := t.old.files[c.Path]
		if !existed {
			continue
		}
		if err := t.root.Rename(c.Path, t.staged(i)+".old"); err != nil {
			return inFile(c.Path, err)
		}
		t.moved = append(t.moved, i)
		if err := t.unchanged(t.staged(i)+".old", was); err != nil { // it may have changed since the check
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
		if t.root.Remove(dir) != nil { // not empty
			return
		}
		t.gone = append(t.gone, dir)
	}
}

// removeFolders removes a folder that contains only folders.
func (t *treeChange) removeFolders(dir string) error {
	folders, err := t.emptyFolders(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(folders) {
		if err := t.root.Remove(name); err != nil {
			return err
		}
		t.gone = append(t.gone, name)
	}
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
	if err := t.root.Mkdir(dir, 0o777); err != nil {
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
		errs = append(errs, t.root.Mkdir(t.gone[i], 0o777))
	}
	for _, i := range t.moved {
		errs = append(errs, t.root.Rename(t.staged(i)+".old", t.changes[i].Path))
	}
	return errors.Join(errs...)
}
