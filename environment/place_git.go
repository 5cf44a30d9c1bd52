package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives"
)

func (g Git) check() error {
	switch {
	case g.URL == "":
		return errors.New("git: url is missing")
	case strings.HasPrefix(g.URL, "-") || strings.ContainsAny(g.URL, "\x00\n"):
		return errors.New(`git: url: it must not begin with "-" or contain a line end`)
	case strings.Contains(g.URL, "::"):
		return errors.New("git: url: remote helpers (name::address) are not allowed; give an https, ssh, git or file address")
	}
	// Before the ref, which may hold the rest of a password, is named.
	if err := g.checkCredentials(); err != nil {
		return err
	}
	if strings.HasPrefix(g.Ref, "-") || strings.ContainsAny(g.Ref, "\x00\n :?*[\\^~") {
		return fmt.Errorf("git: ref: %q is not the name of a branch, a tag or a commit", g.Ref)
	}
	return nil
}

// placeGit clones on this machine and copies from there.
func (e *Environment) placeGit(ctx context.Context, into string, g Git) (err error) {
	dir, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := checkout(ctx, dir, g); err != nil {
		return err
	}
	f := Folder{Path: dir}
	if !g.History {
		// Only the top one is git's own; a repository cannot hold another.
		f.Ignore = []string{".git"}
	}
	return e.placeFolder(ctx, into, f)
}

// checkout fills an empty folder with the files of a repository at a ref.
func checkout(ctx context.Context, dir string, g Git) error {
	env, address := credentialEnv(g.URL)
	git := gitCommand{dir: dir, env: env, secrets: secretsOf(g.URL), fetches: true}
	if _, err := git.run(ctx, "init", "--quiet", "--template=", "--initial-branch=main"); err != nil {
		return err
	}
	if !g.History {
		if err := checkoutShallow(ctx, git, address, g.Ref); err == nil || errors.Is(err, primitives.ErrLimit) {
			return err
		}
	}
	// Everything, also where a server gives neither a single commit nor a
	// shallow history.
	if _, err := git.run(ctx, "remote", "add", "--", "origin", address); err != nil {
		return err
	}
	if _, err := git.run(ctx, "fetch", "--quiet", "--tags", "--no-recurse-submodules", "origin"); err != nil {
		return err
	}
	if err := checkoutRef(ctx, git, g.Ref); err != nil {
		return err
	}
	// What tells of this machine and of the way the clone was made.
	for _, name := range []string{"FETCH_HEAD", "ORIG_HEAD", "logs", "hooks"} {
		if err := os.RemoveAll(filepath.Join(dir, ".git", name)); err != nil {
			return err
		}
	}
	return nil
}

// checkoutShallow fetches one commit alone.
func checkoutShallow(ctx context.Context, git gitCommand, address, ref string) error {
	if ref == "" {
		ref = "HEAD"
	}
	if _, err := git.run(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", address, ref); err != nil {
		return err
	}
	return git.checkout(ctx, "FETCH_HEAD", "--detach", "FETCH_HEAD")
}

// checkoutRef checks out a branch as a branch and everything else detached.
func checkoutRef(ctx context.Context, git gitCommand, ref string) error {
	if ref == "" {
		if _, err := git.run(ctx, "remote", "set-head", "origin", "--auto"); err != nil {
			return err
		}
		out, err := git.run(ctx, "symbolic-ref", "--short", "refs/remotes/origin/HEAD")
		if err != nil {
			return err
		}
		ref = strings.TrimPrefix(strings.TrimSpace(out), "origin/")
	}
	branch := "refs/remotes/origin/" + ref
	if _, err := git.run(ctx, "rev-parse", "--quiet", "--verify", branch); err == nil {
		return git.checkout(ctx, branch, "-B", ref, "--track", branch)
	}
	if _, err := git.run(ctx, "rev-parse", "--quiet", "--verify", ref+"^{commit}"); errors.Is(err, ErrGit) {
		return fmt.Errorf("%w: there is no branch, tag or commit %q in the repository", ErrGit, ref)
	}
	return git.checkout(ctx, ref, "--detach", ref, "--")
}

// gitFiles lists what git would copy of a folder: tracked and untracked files that
// are not ignored, nested repositories included.
func gitFiles(ctx context.Context, dir string) (names []string, err error) {
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

// readingGit returns a git that applies the ignore files of a folder, which need not be
// in a repository. The caller calls done at the end.
func readingGit(ctx context.Context, dir string) (git gitCommand, done func() error, err error) {
	git, done = gitCommand{dir: dir, userConfig: true, complete: true}, func() error { return nil }
	inside, err := inRepository(ctx, gitCommand{dir: dir, userConfig: true})
	if err != nil || inside {
		return git, done, err
	}
	// Not a repository: ask with an empty one.
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

// inRepository reports whether git's folder is in the work tree of a repository. One
// that git does not read is an error: it must not be taken for none, because what
// only its .git/info/exclude leaves out would be copied.
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

// gitAbove returns the .git of a folder, or the next one above it in the same file
// system, where git looks, too. It returns "" if there is none.
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

// mayBeRepository reports whether there is a .git that holds something. Sandboxes
// that hide a repository leave an empty folder or /dev/null in its place.
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

// nestedFiles lists a submodule or another repository that lies in the folder,
// and returns everything else as it is.
func nestedFiles(ctx context.Context, dir, name string) ([]string, error) {
	sub := filepath.Join(dir, filepath.FromSlash(name))
	if info, err := os.Lstat(sub); err != nil || !info.IsDir() {
		return []string{name}, nil //nolint:nilerr // a tracked file that is gone is found out when it is read
	}
	if _, err := os.Lstat(filepath.Join(sub, ".git")); err != nil {
		return nil, nil //nolint:nilerr // a submodule that is not checked out holds no files
	}
	inner, err := gitFiles(ctx, sub)
	for i := range inner {
		inner[i] = strings.TrimSuffix(name, "/") + "/" + inner[i]
	}
	return inner, err
}
