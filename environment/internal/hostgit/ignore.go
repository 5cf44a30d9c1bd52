package hostgit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Files returns the files of a folder that git would copy: tracked and untracked files that are
// not ignored, including those of nested repositories.
func Files(ctx context.Context, dir string) (names []string, err error) {
	git, done, err := readingGit(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	out, err := git.run(ctx, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		if name == "" {
			continue
		}
		nested, err := nestedFiles(ctx, dir, name)
		if err != nil {
			return nil, err
		}
		names = append(names, nested...)
	}
	return names, nil
}

// readingGit returns a git that applies the ignore files of a folder, even if the folder is in
// no repository. The caller calls done at the end.
func readingGit(ctx context.Context, dir string) (git gitCommand, done func() error, err error) {
	git, done = gitCommand{dir: dir, userConfig: true, complete: true}, func() error { return nil }
	inside, err := inRepository(ctx, gitCommand{dir: dir, userConfig: true})
	if err != nil || inside {
		return git, done, err
	}
	// Not a repository: use an empty one.
	abs, err := filepath.Abs(dir)
	if err != nil {
		return git, done, err
	}
	tmp, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return git, done, err
	}
	if _, err := (gitCommand{dir: tmp}).run(ctx, "init", "--quiet", "--bare", "--template="); err != nil {
		return git, done, errors.Join(err, os.RemoveAll(tmp))
	}
	git.args = []string{"--git-dir=" + tmp, "--work-tree=" + abs}
	return git, func() error { return os.RemoveAll(tmp) }, nil
}

// inRepository reports whether the folder of git is in the work tree of a repository. A
// repository that git does not read is an error: without it, files that only its
// .git/info/exclude leaves out would be copied.
func inRepository(ctx context.Context, git gitCommand) (bool, error) {
	inside, err := git.run(ctx, "rev-parse", "--is-inside-work-tree")
	if err == nil {
		return strings.TrimSpace(inside) == "true", nil
	}
	if ctx.Err() != nil || errors.Is(err, exec.ErrNotFound) {
		return false, err
	}
	found, lookErr := gitAbove(git.dir)
	if lookErr != nil {
		return false, errors.Join(err, lookErr)
	}
	if found != "" {
		return false, fmt.Errorf("git does not read %s; do what it says, or copy the folder without gitignore: %w", found, err)
	}
	return false, nil
}

// gitAbove returns the .git of a folder, or the nearest one above it in the same file system,
// which is where git looks too. It returns "" if there is none.
func gitAbove(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	var here, above syscall.Stat_t
	if err := syscall.Stat(dir, &here); err != nil {
		return "", &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	for {
		name := filepath.Join(dir, ".git")
		if is, err := mayBeRepository(name); err != nil || is {
			return name, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		if err := syscall.Stat(parent, &above); err != nil {
			return "", &fs.PathError{Op: "stat", Path: parent, Err: err}
		}
		if above.Dev != here.Dev {
			return "", nil
		}
		dir = parent
	}
}

// mayBeRepository reports whether name is a .git with content. Sandboxes that hide a repository
// leave an empty folder or /dev/null in its place.
func mayBeRepository(name string) (bool, error) {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.IsDir():
		entries, err := os.ReadDir(name)
		return len(entries) > 0, err
	}
	return info.Mode()&fs.ModeDevice == 0, nil
}

// nestedFiles returns the files of a submodule or another repository in the folder, and any
// other name unchanged.
func nestedFiles(ctx context.Context, dir, name string) ([]string, error) {
	sub := filepath.Join(dir, filepath.FromSlash(name))
	if info, err := os.Lstat(sub); err != nil || !info.IsDir() {
		return []string{name}, nil // if a tracked file is gone, reading it fails later
	}
	if _, err := os.Lstat(filepath.Join(sub, ".git")); err != nil {
		return nil, nil // a submodule that is not checked out has no files
	}
	inner, err := Files(ctx, sub)
	for i := range inner {
		inner[i] = strings.TrimSuffix(name, "/") + "/" + inner[i]
	}
	return inner, err
}

// Ignored returns which of some new files, given by their paths below dir, git would ignore
// there, or with the .gitignore files of rules alone, which are given by their paths. If dir does
// not exist, only rules count.
func Ignored(ctx context.Context, dir string, rules map[string][]byte, names []string) ([]string, error) {
	repositories := make(map[string][]string) // the files by their repository
	_, missing := os.Stat(dir)
	for _, name := range names {
		at := "."
		if missing == nil {
			at = innermost(dir, name)
		}
		repositories[at] = append(repositories[at], name)
	}
	var ignored []string
	for at, names := range repositories {
		found, err := ignoredByRules(ctx, rules, at, names)
		if err != nil {
			return nil, err
		}
		ignored = append(ignored, found...)
		names = slices.DeleteFunc(names, func(name string) bool { return missing != nil || !belowFolders(dir, name) })
		if len(names) == 0 {
			continue
		}
		if found, err = gitignored(ctx, dir, at, names); err != nil {
			return nil, err
		}
		ignored = append(ignored, found...)
	}
	return ignored, nil
}

// ignoredByRules returns which of some paths a repository at the folder at would ignore that has
// only the .gitignore files of rules. Without git on this machine it ignores none, since a
// workspace without such a folder needs no git.
func ignoredByRules(ctx context.Context, rules map[string][]byte, at string, names []string) (_ []string, err error) {
	if _, missing := exec.LookPath("git"); missing != nil || len(rules) == 0 {
		return nil, nil
	}
	tmp, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for name, content := range rules {
		name = path.Join("files", name)
		if err := errors.Join(root.MkdirAll(path.Dir(name), 0o700), root.WriteFile(name, content, 0o600)); err != nil {
			return nil, err
		}
	}
	work := filepath.Join(tmp, "files", filepath.FromSlash(at))
	if err := root.MkdirAll(path.Join("files", at), 0o700); err != nil {
		return nil, err
	}
	repository := filepath.Join(tmp, "repository")
	if _, err := (gitCommand{dir: tmp}).run(ctx, "init", "--quiet", "--bare", "--template=", repository); err != nil {
		return nil, err
	}
	git := gitCommand{dir: work, args: []string{"-c", "core.excludesFile=" + os.DevNull, "--git-dir=" + repository, "--work-tree=" + work}}
	return git.checkIgnore(ctx, at, names)
}

// belowFolders reports whether every existing parent of a path is a folder: git answers for no
// other path.
func belowFolders(dir, name string) bool {
	for at := path.Dir(name); at != "."; at = path.Dir(at) {
		if info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(at))); err == nil && !info.IsDir() {
			return false
		}
	}
	return true
}

// innermost returns the deepest parent of a path that is a repository of its own below dir, else
// ".".
func innermost(dir, name string) string {
	for at := path.Dir(name); at != "."; at = path.Dir(at) {
		if is, err := mayBeRepository(filepath.Join(dir, filepath.FromSlash(at), ".git")); err == nil && is {
			return at
		}
	}
	return "."
}

// gitignored returns which of some paths below dir are ignored by the repository at dir/at.
func gitignored(ctx context.Context, dir, at string, names []string) (_ []string, err error) {
	git, done, err := readingGitAt(ctx, dir, at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return git.checkIgnore(ctx, at, names)
}

func readingGitAt(ctx context.Context, dir, at string) (git gitCommand, done func() error, err error) {
	return readingGit(ctx, filepath.Join(dir, filepath.FromSlash(at)))
}

// checkIgnore returns which of some paths git ignores, in the repository at the folder at.
func (g gitCommand) checkIgnore(ctx context.Context, at string, names []string) ([]string, error) {
	list, err := g.withPaths(at, names).run(ctx, "check-ignore", "-z", "--stdin")
	if exitCode(err) == 1 {
		return nil, nil // it ignores none of them
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		found = append(found, belowRepository(at, name))
	}
	return found, nil
}

// withPaths returns a git whose input is some paths, as the repository at the folder at has them.
func (g gitCommand) withPaths(at string, names []string) gitCommand {
	var paths strings.Builder
	for _, name := range names {
		paths.WriteString(strings.TrimPrefix(name, belowRepository(at, "")) + "\x00")
	}
	g.input = strings.NewReader(paths.String())
	return g
}

// belowRepository returns a path of the repository at the folder at as a path of that folder's
// parent.
func belowRepository(at, name string) string {
	if at == "." {
		return name
	}
	return at + "/" + name
}
