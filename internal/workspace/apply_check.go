package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

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
	_, existed := t.old.files[c.Path]
	if wanted && t.unchanged(c.Path, is) == nil {
		return !existed || t.hasMode(c.Path), nil
	}
	if existed {
		return false, t.replaceable(c.Path, c.Path)
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

// replaceable checks that a file at a path is as the changed file was, or has the change except
// for its permission.
func (t *treeChange) replaceable(at, name string) error {
	err := t.unchanged(at, t.old.files[name])
	if is, wanted := t.current.files[name]; err != nil && wanted && t.unchanged(at, is) == nil {
		return nil
	}
	return err
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
