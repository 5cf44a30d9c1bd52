package docker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/hostfile"
)

// Programs of the machine execute some files of a folder without being asked: git executes what its
// configuration and its hooks name, editors and agents execute what their settings name. These
// files are read-only in the container: each is mounted onto itself. A mount point cannot be
// renamed or removed in the container, but a parent folder can. So every parent folder is mounted
// onto itself, too, writable.
//
// Three things are not protected. A missing file: a mount needs a mount point, which the
// engine would make in the user's folder, where it confuses programs and survives a crash.
// A symbolic link. And a file that the machine itself replaces by renaming another one over
// it while the container runs: the kernel then removes the mount.

// protectedNames returns paths in a mounted folder from which programs of the machine take
// commands. protectGit finds those of git.
func protectedNames() []string {
	return []string{
		".vscode", ".idea", ".zed", ".devcontainer", ".cursor", ".envrc", ".husky",
		".mcp.json", ".claude", ".gemini", ".codex", ".opencode", "opencode.json", "opencode.jsonc",
		".gitconfig", ".bashrc", ".bash_profile", ".bash_login", ".profile",
		".zshrc", ".zprofile", ".zshenv", ".zlogin", ".ripgreprc", // of a user's home directory
	}
}

// protectedGit returns paths in a git directory from which git takes commands, or the place of a
// configuration.
func protectedGit() []string {
	return []string{"config", "config.worktree", "hooks", "commondir", "gitdir", "info/attributes", "modules"}
}

// checkWritable refuses names that cannot be below a folder, and names below a protected path: only
// the whole path can be writable.
func (c config) checkWritable() error {
	whole := protectedNames()
	for _, name := range protectedGit() {
		whole = append(whole, path.Join(".git", name))
	}
	for i, name := range c.Writable {
		field := fmt.Sprintf("writable[%d]", i)
		if !filepath.IsLocal(name) || path.Clean(name) != name {
			return c.invalid(field, fmt.Sprintf("%q is not a clean relative path; give one within the mounted folder, such as .git/hooks", name))
		}
		for _, w := range whole {
			if name != w && hostfile.Within(name, w) {
				return c.invalid(field, name+" cannot be writable alone; give "+w+", which makes all that is below writable")
			}
		}
	}
	return nil
}

// protect adds mounts that make the files read-only that programs of the machine execute. writable
// are paths that stay writable, with everything below.
func (f *hostFolders) protect(writable []string) error {
	if slices.Contains(writable, ".") {
		return nil
	}
	named := slices.Clone(f.list)
	for _, h := range named {
		if h.readOnly || h.source.Info == nil || !h.source.Info.IsDir() {
			continue
		}
		p := protector{folders: f, root: h, named: named, writable: writable}
		if err := p.protect(); err != nil {
			return fmt.Errorf("%s: %w", h.Field, err)
		}
	}
	return nil
}

// protector protects one folder.
type protector struct {
	folders  *hostFolders
	root     hostFolder
	named    []hostFolder // what the configuration mounts
	writable []string
}

func (p protector) protect() error {
	for _, name := range protectedNames() {
		if err := p.keep(name); err != nil {
			return err
		}
	}
	if isRepository(p.root.source) { // a bare repository, or a git directory
		return p.protectGit("")
	}
	git, found, err := p.look(".git")
	switch {
	case err != nil || !found:
		return err
	case !git.IsDir():
		return p.protectNamed()
	}
	if err := p.hold(".git"); err != nil {
		return err
	}
	return p.protectGit(".git")
}

// protectNamed protects a .git that is a file, and the git directory that it names if that is in
// the mounted folder.
func (p protector) protectNamed() error {
	if err := p.keep(".git"); err != nil {
		return err
	}
	text, err := p.read(".git")
	if err != nil {
		return err
	}
	named, found := strings.CutPrefix(string(text), "gitdir:")
	dir, inside := p.resolve("", named)
	if !found || !inside {
		return nil
	}
	return p.protectGit(dir)
}

// isRepository reports whether a folder is a git directory.
func isRepository(o hostfile.File) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(o.Path() + "/" + name); err != nil {
			return false
		}
	}
	return true
}

// maxWorktrees is how many worktrees of a repository are protected one by one.
const maxWorktrees = 32

// protectGit protects a git directory.
func (p protector) protectGit(dir string) error {
	for _, name := range protectedGit() {
		if err := p.keep(path.Join(dir, name)); err != nil {
			return err
		}
	}
	trees, err := p.entries(path.Join(dir, "worktrees"))
	if err != nil {
		return err
	}
	if len(trees) > maxWorktrees {
		return p.keep(path.Join(dir, "worktrees"))
	}
	for _, tree := range trees {
		for _, name := range []string{"commondir", "gitdir", "config.worktree"} {
			if err := p.keep(path.Join(dir, "worktrees", tree, name)); err != nil {
				return err
			}
		}
	}
	named, err := p.namedByConfig(dir)
	for _, name := range named {
		err = errors.Join(err, p.keep(name))
	}
	return err
}

var (
	hooksPath   = regexp.MustCompile(`(?im)^[^#;\n]*\bhookspath\s*=\s*"?([^"#;\n]+)`)
	includePath = regexp.MustCompile(`(?im)^(?:\s*\[include[^\n]*\])?\s*path\s*=\s*"?([^"#;\n]+)`)
)

// maxGitConfig bounds what is read of a git configuration. Repositories have less.
const maxGitConfig = 1 << 20

// namedByConfig returns the files and folders in the mounted folder from which git's configuration
// takes hooks and includes. Git has more ways to name them; these are the usual ones.
func (p protector) namedByConfig(dir string) ([]string, error) {
	text, err := p.read(path.Join(dir, "config"))
	if err != nil {
		return nil, err
	}
	var names []string
	add := func(base string, matches [][][]byte) {
		for _, m := range matches {
			if name, inside := p.resolve(base, string(m[1])); inside {
				names = append(names, name)
			}
		}
	}
	add("", hooksPath.FindAllSubmatch(text, -1))
	add(dir, includePath.FindAllSubmatch(text, -1))
	return names, nil
}

// read returns the beginning of a regular file, or nil if there is none.
func (p protector) read(name string) ([]byte, error) {
	o, found, err := p.open(name)
	if err != nil || !found {
		return nil, err
	}
	defer func() { _ = o.Close() }() // it was only read
	if !o.Info.Mode().IsRegular() {
		return nil, nil
	}
	f, err := os.Open(o.Path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, maxGitConfig))
}

// resolve returns the path in the folder that git means by a name, which may be relative to base.
// It returns false if the path is not below the folder.
func (p protector) resolve(base, name string) (string, bool) {
	name = strings.TrimSpace(name)
	if path.IsAbs(name) {
		relative, err := filepath.Rel(p.root.source.Name, name)
		if err != nil {
			return "", false
		}
		name = relative
	} else {
		name = path.Join(base, name)
	}
	name = path.Clean(name)
	return name, name != "." && filepath.IsLocal(name)
}

// keep makes an existing path read-only, and holds its parent folders.
func (p protector) keep(name string) error {
	if _, found, err := p.look(name); err != nil || !found || p.excepted(name) {
		return err
	}
	for i, r := range name {
		if r == '/' {
			if err := p.hold(name[:i]); err != nil {
				return err
			}
		}
	}
	return p.bind(name, true)
}

// hold mounts a folder onto itself, writable, so that it cannot be renamed.
func (p protector) hold(name string) error { return p.bind(name, false) }

func (p protector) bind(name string, readOnly bool) error {
	target := path.Join(p.root.Target, name)
	for i, h := range p.folders.list {
		if h.Target == target { // a mount of the configuration, or another name led here
			if h.protected && readOnly {
				p.folders.list[i].readOnly = true
				p.dropWritable(target)
			}
			return nil
		}
		if p.owns(h) && h.readOnly && hostfile.Within(target, h.Target) {
			return nil // a mount of its own could only be less protected
		}
	}
	for _, h := range p.named {
		if h.Target != p.root.Target && hostfile.Within(h.Target, p.root.Target) && hostfile.Within(target, h.Target) {
			return nil // something else is mounted there
		}
	}
	if p.excepted(name) {
		return nil
	}
	o, found, err := p.open(name)
	if err != nil || !found {
		return err
	}
	if readOnly {
		p.dropWritable(target)
	}
	p.folders.add(hostFolder{mountedFile: mountedFile{Field: p.root.Field, Target: target}, source: o, readOnly: readOnly, protected: true})
	return nil
}

// owns reports whether an entry protects a path in this folder.
func (p protector) owns(h hostFolder) bool { return h.protected && h.Field == p.root.Field }

// dropWritable removes the held folders below a target that is read-only now: their own mounts
// would stay writable.
func (p protector) dropWritable(target string) {
	p.folders.list = slices.DeleteFunc(p.folders.list, func(h hostFolder) bool {
		drop := p.owns(h) && !h.readOnly && hostfile.Within(h.Target, target)
		if drop {
			_ = h.source.Close() // nothing was written
		}
		return drop
	})
}

// excepted reports whether a path stays writable.
func (p protector) excepted(name string) bool {
	return slices.ContainsFunc(p.writable, func(w string) bool { return hostfile.Within(name, w) })
}

// open opens a path in the folder. It returns false if the path is missing or contains a symbolic
// link, which it does not follow.
func (p protector) open(name string) (hostfile.File, bool, error) {
	at, last := p.root.source, hostfile.File{}
	for part := range strings.SplitSeq(name, "/") {
		next, err := at.Child(part)
		_ = last.Close() // a parent folder
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid), errors.Is(err, syscall.ENOTDIR):
			return hostfile.File{}, false, nil
		case err != nil:
			return hostfile.File{}, false, fmt.Errorf("let this program look at what git and editors execute, or name it in writable: %w", err)
		}
		at, last = next, next
	}
	return last, true, nil
}

func (p protector) look(name string) (fs.FileInfo, bool, error) {
	o, found, err := p.open(name)
	if !found {
		return nil, false, err
	}
	return o.Info, true, o.Close()
}

// entries returns the names in a folder, or nil if there is no such folder.
func (p protector) entries(name string) ([]string, error) {
	o, found, err := p.open(name)
	if err != nil || !found || !o.Info.IsDir() {
		return nil, err
	}
	defer func() { _ = o.Close() }() // it was only read
	list, err := os.ReadDir(o.Path())
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}
