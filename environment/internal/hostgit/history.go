package hostgit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/input"
)

// ErrNoRepository means that a folder is not the top of a repository's work tree.
var ErrNoRepository = errors.New("the folder is not the top of a git repository")

// RecentCommits is how deep the history is that [CopyRepository] copies of a large repository.
const RecentCommits = 50

// maxInfo limits .git/info/exclude, .git/info/attributes and .git/shallow, in bytes.
const maxInfo = 16 << 20

// CopyRepository makes a new repository in the empty folder to: with the commits, branches, tags,
// HEAD and index of the repository whose work tree is dir. It copies no file of the work tree. An
// index entry for which left reports true, and one with a filter such as that of Git LFS, is marked
// skip-worktree, so that git neither misses nor commits the file.
//
// The new repository has a configuration of its own, see configure. It shares nothing with the
// old one: no hook, no alternates, no object that nothing refers to. CopyRepository writes nothing
// to the old one and runs no command that it names.
//
// If the old one has more than most bytes of objects, only the current branch is copied, to a depth
// of [RecentCommits], and recent is true. A folder that is in no repository or below its top is
// [ErrNoRepository].
func CopyRepository(ctx context.Context, dir, to string, most int64, left func(name string) bool) (recent bool, err error) {
	c := &copying{from: gitCommand{dir: dir, userConfig: true}, to: gitCommand{dir: to}, left: left}
	if err := c.from.checkTop(ctx); err != nil {
		return false, err
	}
	size, err := c.from.objectBytes(ctx)
	if err != nil {
		return false, err
	}
	c.recent = size > most
	for _, step := range []func(context.Context) error{c.begin, c.refs, c.shallow, c.index, c.pack, c.configure, c.info} {
		if err := step(ctx); err != nil {
			return false, err
		}
	}
	return c.recent, nil
}

// copying is one CopyRepository.
type copying struct {
	from, to gitCommand
	left     func(string) bool
	recent   bool
	head     string // the commit of HEAD; empty if there is none yet
	branch   string // the full name of the current branch; empty if HEAD is detached
}

// checkTop returns [ErrNoRepository] unless the folder of g is the top of a work tree.
func (g gitCommand) checkTop(ctx context.Context) error {
	inside, err := inRepository(ctx, g)
	if err != nil {
		return err
	}
	if !inside {
		return ErrNoRepository
	}
	below, err := g.run(ctx, "rev-parse", "--show-prefix")
	if err != nil {
		return err
	}
	if line(below) != "" {
		return fmt.Errorf("%w: it is %s of one; give the top", ErrNoRepository, line(below))
	}
	return nil
}

// objectBytes returns the size of the objects of a repository on disk, without those of alternates.
func (g gitCommand) objectBytes(ctx context.Context) (size int64, err error) {
	out, err := g.run(ctx, "count-objects", "-v")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(out) {
		key, value, _ := strings.Cut(line(l), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && (key == "size" || key == "size-pack") {
			size += n << 10
		}
	}
	return size, nil
}

// begin makes the new repository, which borrows the objects of the old one until pack.
func (c *copying) begin(ctx context.Context) (err error) {
	if err := c.to.initLike(ctx, c.from); err != nil {
		return err
	}
	if c.head, err = c.from.commitOf(ctx, "HEAD"); err != nil {
		return err
	}
	c.branch, err = c.from.optional(ctx, "symbolic-ref", "--quiet", "HEAD")
	return err
}

// initLike makes an empty repository that borrows the objects of another one.
func (g gitCommand) initLike(ctx context.Context, other gitCommand) error {
	format, err := other.run(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	begin := g
	begin.env = append(slices.Clone(g.env), "GIT_DEFAULT_REF_FORMAT=files") // refs writes packed-refs
	if _, err := begin.run(ctx, "init", "--quiet", "--template=", "--initial-branch=main", "--object-format="+line(format)); err != nil {
		return err
	}
	objects, err := other.gitPath(ctx, "objects")
	if err != nil {
		return err
	}
	quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(objects) + "\"\n"
	return writeIn(g.dir, alternates, quoted)
}

// alternates is the file that names the repositories whose objects a repository borrows.
const alternates = "objects/info/alternates"

// gitPath returns the absolute path of a file of the repository, which may be that of a work tree.
func (g gitCommand) gitPath(ctx context.Context, name string) (string, error) {
	out, err := g.run(ctx, "rev-parse", "--git-path", name)
	if err != nil {
		return "", err
	}
	if out = line(out); !filepath.IsAbs(out) {
		out = filepath.Join(g.dir, out)
	}
	return filepath.Abs(out)
}

// commitOf returns the ID of a commit; empty if there is none of this name.
func (g gitCommand) commitOf(ctx context.Context, name string) (string, error) {
	return g.optional(ctx, "rev-parse", "--quiet", "--verify", name+"^{commit}")
}

// optional returns a line that git prints, or an empty one if git exits with 1.
func (g gitCommand) optional(ctx context.Context, args ...string) (string, error) {
	out, err := g.run(ctx, args...)
	if exitCode(err) == 1 {
		return "", nil
	}
	return line(out), err
}

// line returns text without its final line end.
func line(text string) string { return strings.TrimSuffix(text, "\n") }

// refs copies HEAD, branches, remote-tracking branches and tags. A stash stays here.
func (c *copying) refs(ctx context.Context) error {
	var packed strings.Builder
	var symbolic [][2]string
	switch {
	case c.recent && c.branch != "" && c.head != "":
		packed.WriteString(c.head + " " + c.branch + "\n")
	case !c.recent:
		out, err := c.from.run(ctx, "for-each-ref", "--format=%(objectname) %(refname) %(symref)", "refs/heads", "refs/remotes", "refs/tags")
		if err != nil {
			return err
		}
		for l := range strings.Lines(out) {
			ref, target, _ := strings.Cut(line(l), " ")
			name, symref, _ := strings.Cut(target, " ")
			if symref != "" {
				symbolic = append(symbolic, [2]string{name, symref})
				continue
			}
			packed.WriteString(ref + " " + name + "\n")
		}
	}
	if err := writeIn(c.to.dir, "packed-refs", packed.String()); err != nil {
		return err
	}
	for _, s := range symbolic {
		if _, err := c.to.run(ctx, "symbolic-ref", s[0], s[1]); err != nil {
			return err
		}
	}
	if c.branch != "" {
		_, err := c.to.run(ctx, "symbolic-ref", "HEAD", c.branch)
		return err
	}
	_, err := c.to.run(ctx, "update-ref", "--no-deref", "HEAD", c.head)
	return err
}

// shallow says where the history ends: where it ends in the old repository and, of a large one, at
// the depth of RecentCommits.
func (c *copying) shallow(ctx context.Context) error {
	ends, err := c.from.shallowCommits(ctx)
	if err != nil || !c.recent || c.head == "" {
		return errors.Join(err, writeShallow(c.to.dir, ends))
	}
	out, err := c.from.run(ctx, "rev-list", "--parents", "--max-count="+strconv.Itoa(100*RecentCommits), c.head)
	if err != nil {
		return err
	}
	parents := make(map[string][]string)
	for l := range strings.Lines(out) {
		ids := strings.Fields(l)
		parents[ids[0]] = ids[1:]
	}
	var cut []string
	seen := map[string]bool{c.head: true}
	level := []string{c.head}
	for depth := 1; len(level) > 0; depth++ {
		var next []string
		for _, id := range level {
			older, known := parents[id]
			if depth == RecentCommits || !known || slices.Contains(ends, id) {
				cut = append(cut, id)
				continue
			}
			for _, p := range older {
				if !seen[p] {
					seen[p] = true
					next = append(next, p)
				}
			}
		}
		level = next
	}
	return writeShallow(c.to.dir, cut)
}

// shallowCommits returns the commits at which the history of a shallow repository ends.
func (g gitCommand) shallowCommits(ctx context.Context) ([]string, error) {
	name, err := g.gitPath(ctx, "shallow")
	if err != nil {
		return nil, err
	}
	data, err := input.ReadFile(name, maxInfo)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

func writeShallow(dir string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return writeIn(dir, "shallow", strings.Join(slices.Compact(ids), "\n")+"\n")
}

// pack copies all objects that the refs and the index need, as one pack, and ends the borrowing.
func (c *copying) pack(ctx context.Context) error {
	if _, err := c.to.run(ctx, "-c", "pack.window=0", "-c", "repack.writeBitmaps=false", "repack", "-a", "-d", "-n", "-q"); err != nil {
		return fmt.Errorf("copy the history: %w; if the repository lacks objects, as a partial clone does, they are not fetched: copy the folder without history", err)
	}
	if err := os.Remove(filepath.Join(c.to.dir, ".git", alternates)); err != nil {
		return err
	}
	return keepPacks(c.to.dir)
}

// keepPacks marks the packs of a new repository as kept: git leaves them as they are when it packs
// again, so that [Receiver] need not read what is known here.
func keepPacks(dir string) error {
	packs, err := filepath.Glob(filepath.Join(dir, ".git", "objects", "pack", "*.pack"))
	for _, name := range packs {
		err = errors.Join(err, os.WriteFile(strings.TrimSuffix(name, ".pack")+".keep", nil, 0o444))
	}
	return err
}

// info copies the patterns of ignored files and the attributes that are not in the work tree.
func (c *copying) info(ctx context.Context) error {
	for _, name := range []string{"info/exclude", "info/attributes"} {
		from, err := c.from.gitPath(ctx, name)
		if err != nil {
			return err
		}
		data, err := input.ReadFile(from, maxInfo)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := writeIn(c.to.dir, name, string(data)); err != nil {
			return err
		}
	}
	return nil
}

// writeIn writes a file of the .git folder of a new repository.
func writeIn(dir, name, content string) error {
	full := filepath.Join(dir, ".git", name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return os.WriteFile(full, []byte(content), 0o644)
}

// copiedSettings are the settings that decide how git reads files, with the values that are copied.
var copiedSettings = map[string][]string{
	"core.autocrlf": {"true", "false", "input"},
	"core.eol":      {"lf", "crlf", "native"},
	"core.filemode": {"true", "false"},
}

// setting returns a setting of copiedSettings; empty for none.
func (g gitCommand) setting(ctx context.Context, key string) (string, error) {
	value, err := gitCommand{dir: g.dir, userConfig: g.userConfig, unhardened: true}.optional(ctx, "config", "--get", key)
	if value = strings.ToLower(value); !slices.Contains(copiedSettings[key], value) {
		value = ""
	}
	return value, err
}

// configure writes the configuration of the new repository: the user's name and address, how files
// are read, the remotes without credentials, and the branch that the current one follows. It copies
// nothing that names a program, a file or another configuration.
func (c *copying) configure(ctx context.Context) error {
	if err := c.to.setIdentity(ctx, c.from); err != nil {
		return err
	}
	for key := range copiedSettings {
		value, err := c.from.setting(ctx, key)
		if err == nil && value != "" {
			_, err = c.to.run(ctx, "config", key, value)
		}
		if err != nil {
			return err
		}
	}
	out, err := c.from.run(ctx, "config", "-z", "--get-regexp", `^(remote\..*\.url|branch\..*\.(remote|merge))$`)
	if err != nil && exitCode(err) != 1 {
		return err
	}
	for entry := range strings.SplitSeq(out, "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		if err := c.configureRemote(ctx, key, value); err != nil {
			return err
		}
	}
	return nil
}

// configureRemote copies one setting of a remote or of the current branch.
func (c *copying) configureRemote(ctx context.Context, key, value string) error {
	if remote, ok := strings.CutPrefix(key, "remote."); ok {
		remote = strings.TrimSuffix(remote, ".url")
		_, err := c.to.run(ctx, "config", "remote."+remote+".fetch", "+refs/heads/*:refs/remotes/"+remote+"/*")
		if address := shared(value); err == nil && address != "" {
			_, err = c.to.run(ctx, "config", "remote."+remote+".url", address)
		}
		return err
	}
	branch, current := strings.CutPrefix(c.branch, "refs/heads/")
	name := strings.TrimPrefix(key, "branch."+branch+".")
	if current && (name == "remote" && !strings.ContainsAny(value, "/:") || name == "merge" && strings.HasPrefix(value, "refs/")) {
		_, err := c.to.run(ctx, "config", key, value)
		return err
	}
	return nil
}

// sharedURL matches the addresses that mean the same on every machine.
var sharedURL = regexp.MustCompile(`^((https?|ssh|git)://|([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9_.-]*:[^:])[^\x00-\x1f]*$`)

// shared returns the address of a remote without credentials; empty if it is of this machine only.
func shared(raw string) string {
	if !sharedURL.MatchString(raw) {
		return ""
	}
	_, address := credentialEnv(raw)
	if strings.HasPrefix(address, "http") {
		address, _, _ = strings.Cut(address, "?") // it may hold a token
	}
	return address
}

// The author of commits in a sandbox if the user of this machine has no name for git.
const noName, noEmail = "agentenv", "agentenv@localhost"

// identity returns the name and the address that git uses for commits of this machine's user.
func (g gitCommand) identity(ctx context.Context) (name, email string, err error) {
	for _, one := range []struct {
		value               *string
		variable, key, none string
	}{{&name, "GIT_AUTHOR_NAME", "user.name", noName}, {&email, "GIT_AUTHOR_EMAIL", "user.email", noEmail}} {
		value, err := g.optional(ctx, "config", "--get", one.key)
		if err != nil {
			return "", "", err
		}
		*one.value = cmp.Or(os.Getenv(one.variable), value, one.none)
	}
	return name, email, nil
}

// setIdentity makes the user of this machine the author of commits in a new repository.
func (g gitCommand) setIdentity(ctx context.Context, from gitCommand) error {
	name, email, err := from.identity(ctx)
	if err == nil {
		_, err = g.run(ctx, "config", "user.name", name)
	}
	if err == nil {
		_, err = g.run(ctx, "config", "user.email", email)
	}
	return err
}
