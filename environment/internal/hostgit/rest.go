package hostgit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// File is a file of a work tree in a sandbox.
type File struct {
	Path   string
	Mode   fs.FileMode // type and permission; zero means that the file was deleted
	Target string      // of a symbolic link
	// Open reads a regular file.
	Open func(context.Context) (io.ReadCloser, error)
}

// CommitRest commits those of the files that differ from the last commit of [Receiver.SetHead], on
// top of it, with the user of this machine as the author. It names the files that git here cannot
// commit: those in submodules and those with a filter, such as that of Git LFS.
func (r *Receiver) CommitRest(ctx context.Context, files []File, message string) (left []string, err error) {
	parent, err := r.own.commitOf(ctx, received)
	if err != nil {
		return nil, err
	}
	tree := "--empty"
	if parent != "" {
		tree = parent
		if err := r.own.measure(ctx, parent); err != nil {
			return nil, err
		}
	}
	if _, err := r.own.run(ctx, "read-tree", tree); err != nil {
		return nil, err
	}
	files, left, err = r.committable(ctx, files)
	if err != nil || len(files) == 0 {
		return left, err
	}
	if err := r.writeFiles(ctx, files); err != nil {
		return left, err
	}
	if err := r.stage(ctx, files); err != nil {
		return left, err
	}
	return left, r.commit(ctx, parent, message)
}

// committable separates the files that git cannot commit here. The attributes are those of the last
// commit, with .gitattributes as it is now.
func (r *Receiver) committable(ctx context.Context, files []File) (rest []File, left []string, err error) {
	entries, err := r.own.entries(ctx)
	if err != nil {
		return nil, nil, err
	}
	submodules := make(map[string]bool)
	for _, e := range entries {
		if e.isSubmodule() {
			submodules[e.name] = true
		}
	}
	inSubmodule := func(name string) bool {
		for ; name != "."; name = path.Dir(name) {
			if submodules[name] {
				return true
			}
		}
		return false
	}
	var names []string
	var attributes []File
	for _, f := range files {
		names = append(names, f.Path)
		if path.Base(f.Path) == ".gitattributes" {
			attributes = append(attributes, f)
		}
	}
	if err := r.writeFiles(ctx, attributes); err != nil {
		return nil, nil, err
	}
	filtered, err := r.inTree().filtered(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if filtered[f.Path] || inSubmodule(f.Path) {
			left = append(left, f.Path)
			continue
		}
		rest = append(rest, f)
	}
	return rest, left, nil
}

// inTree returns a git with the work tree of the receiver. That is not the folder with .git, so that
// no link in it leads there.
func (r *Receiver) inTree() gitCommand {
	git := r.own
	git.dir = r.tree
	git.args = []string{"--git-dir=" + filepath.Join(r.own.dir, ".git"), "--work-tree=" + r.tree}
	return git
}

// writeFiles writes files into the work tree of the receiver's repository.
func (r *Receiver) writeFiles(ctx context.Context, files []File) (err error) {
	if len(files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(r.tree)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, f := range files {
		if f.Mode == 0 {
			continue
		}
		if err := writeFile(ctx, root, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

func writeFile(ctx context.Context, root *os.Root, f File) error {
	if err := root.MkdirAll(path.Dir(f.Path), 0o700); err != nil {
		return err
	}
	if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // .gitattributes may have been written before
	}
	if f.Mode&fs.ModeSymlink != 0 {
		return root.Symlink(f.Target, f.Path)
	}
	content, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // it was only read
	out, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600|f.Mode.Perm()&0o100)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	return errors.Join(err, out.Close())
}

// stage puts files into the index. Line ends are converted as in the user's repository.
func (r *Receiver) stage(ctx context.Context, files []File) error {
	own := r.inTree()
	for key := range copiedSettings {
		value, err := r.repo.setting(ctx, key)
		if err != nil {
			return err
		}
		if value != "" && key != "core.filemode" {
			own.args = append(own.args, "-c", key+"="+value)
		}
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	own.input = joined(names)
	_, err := own.run(ctx, "update-index", "--add", "--remove", "--replace", "-z", "--stdin")
	return err
}

// commit commits the index, unless it is that of the parent. Commits that earlier calls have made for
// the branch, on the same parent with the same subject, stay below.
func (r *Receiver) commit(ctx context.Context, parent, message string) error {
	tree, err := r.own.run(ctx, "write-tree")
	if err != nil {
		return err
	}
	top, err := r.earlier(ctx, parent, message)
	if err != nil {
		return err
	}
	args := []string{"commit-tree", "-m", message, line(tree)}
	if top != "" {
		old, err := r.own.run(ctx, "rev-parse", top+"^{tree}")
		if err != nil {
			return err
		}
		if old == tree {
			_, err = r.own.run(ctx, "update-ref", received, top)
			return err
		}
		args = append(args, "-p", top)
	}
	name, email, err := r.repo.identity(ctx)
	if err != nil {
		return err
	}
	own := r.own
	own.env = append(own.env, "GIT_AUTHOR_NAME="+name, "GIT_AUTHOR_EMAIL="+email, "GIT_COMMITTER_NAME="+name, "GIT_COMMITTER_EMAIL="+email)
	commit, err := own.run(ctx, args...)
	if err != nil {
		return err
	}
	_, err = r.own.run(ctx, "update-ref", received, line(commit))
	return err
}

// earlier returns the last commit of the branch if it and those before it, down to the parent, have
// the subject of the message; else it returns the parent.
func (r *Receiver) earlier(ctx context.Context, parent, message string) (string, error) {
	tip, err := r.repo.commitOf(ctx, r.branch)
	if err != nil || tip == "" {
		return parent, err
	}
	subject, _, _ := strings.Cut(message, "\n")
	args := []string{"log", "--format=%P%x00%s%x00", tip}
	if parent != "" {
		args = append(args, "^"+parent)
	}
	log, err := r.own.run(ctx, args...)
	if err != nil {
		return "", err
	}
	fields := strings.Split(log, "\x00")
	var below string
	for i := 0; i+1 < len(fields); i += 2 {
		below = strings.TrimSpace(fields[i])
		if fields[i+1] != subject {
			return parent, nil
		}
	}
	if below != parent {
		return parent, nil // also of several parents
	}
	return tip, nil
}
