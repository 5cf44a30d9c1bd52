package hostgit

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
)

// ErrBranch means that a branch cannot receive commits: it has a bad name, it is checked out, or
// its own commits would be lost.
var ErrBranch = errors.New("the branch cannot be updated")

// received is the branch of a Receiver's own repository.
const received = "refs/heads/received"

// Receiver takes the commits of a sandbox into a branch of a repository of this machine. It trusts
// nothing that comes from the sandbox: it takes objects only, indexes packs itself, and git checks
// all new objects before the repository gets them. No git runs in a folder that the sandbox made.
type Receiver struct {
	repo   gitCommand // of the user
	branch string     // its full name
	name   string
	own    gitCommand // a repository in a temporary folder, which borrows the objects of repo
	tree   string     // the work tree of own, outside of own.dir
	tmp    string     // the temporary folder
}

// CheckBranch returns [ErrBranch] if a branch of the repository whose work tree is dir cannot
// receive commits, as far as that is known without them.
func CheckBranch(ctx context.Context, dir, name string) error {
	return newReceiver(dir, name).check(ctx)
}

func newReceiver(dir, name string) *Receiver {
	return &Receiver{repo: gitCommand{dir: dir, userConfig: true}, branch: "refs/heads/" + name, name: name}
}

// NewReceiver returns a receiver for a branch of the repository whose work tree is dir. The branch
// need not exist. The caller must close the receiver.
func NewReceiver(ctx context.Context, dir, name string) (*Receiver, error) {
	r := newReceiver(dir, name)
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return nil, err
	}
	r.tmp, r.tree = tmp, filepath.Join(tmp, "tree")
	// An object that claims to be huge must not take the memory of this machine.
	r.own = gitCommand{dir: filepath.Join(tmp, "own"), env: []string{"GIT_ALLOC_LIMIT=1g"}}
	err = errors.Join(os.Mkdir(r.tree, 0o700), os.Mkdir(r.own.dir, 0o700))
	if err == nil {
		err = r.own.initLike(ctx, r.repo)
	}
	if err == nil {
		var ends []string
		ends, err = r.repo.shallowCommits(ctx)
		err = errors.Join(err, writeShallow(r.own.dir, ends))
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close removes what the receiver stores.
func (r *Receiver) Close() error { return os.RemoveAll(r.tmp) }

func (r *Receiver) check(ctx context.Context) error {
	if err := r.repo.checkTop(ctx); err != nil {
		return err
	}
	_, err := r.repo.run(ctx, "check-ref-format", r.branch)
	switch {
	case exitCode(err) == 1, strings.HasPrefix(r.name, "-"), r.name == "HEAD":
		return fmt.Errorf("%w: %q is no name of a branch", ErrBranch, r.name)
	case err != nil:
		return err
	}
	trees, err := r.repo.run(ctx, "worktree", "list", "--porcelain")
	if err != nil {
		return err
	}
	for l := range strings.Lines(trees) {
		if line(l) == "branch "+r.branch {
			return fmt.Errorf("%w: %s is checked out; give another name, and merge that branch", ErrBranch, r.name)
		}
	}
	refs, err := r.repo.run(ctx, "for-each-ref", "--format=%(refname)", "refs/heads")
	if err != nil {
		return err
	}
	for l := range strings.Lines(refs) {
		if other := line(l); strings.HasPrefix(other, r.branch+"/") || strings.HasPrefix(r.branch, other+"/") {
			return fmt.Errorf("%w: there is a branch %s, and git cannot have %s beside it; give another name",
				ErrBranch, strings.TrimPrefix(other, "refs/heads/"), r.name)
		}
	}
	return nil
}

// objectPattern matches the files of .git/objects that a receiver takes.
var objectPattern = regexp.MustCompile(`^([0-9a-f]{2}/[0-9a-f]{38}([0-9a-f]{24})?|pack/pack-[0-9a-f]{40}([0-9a-f]{24})?\.pack)$`)

// Take takes the objects in a tar archive of .git/objects. It ignores all else in it.
func (r *Receiver) Take(ctx context.Context, objects io.Reader, limit archive.Limit) (err error) {
	root, err := os.OpenRoot(filepath.Join(r.own.dir, ".git", "objects"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	var packs []string
	in := archive.NewReader(objects, limit)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		if h.Typeflag != tar.TypeReg || !objectPattern.MatchString(name) {
			continue
		}
		fresh, err := writeObject(root, name, in)
		if err != nil {
			return err
		}
		if fresh && strings.HasSuffix(name, ".pack") {
			packs = append(packs, name)
		}
	}
	for _, name := range packs {
		if _, err := r.own.run(ctx, "index-pack", path.Join(".git", "objects", name)); err != nil {
			return err
		}
	}
	return nil
}

// writeObject writes a file, unless it was taken before.
func writeObject(root *os.Root, name string, content io.Reader) (fresh bool, err error) {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return false, err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = io.Copy(f, content)
	return true, errors.Join(err, f.Close())
}

// SetHead names the commit of the sandbox that the branch is to have; "" if it has none. It fails
// if objects of the commit are missing.
func (r *Receiver) SetHead(ctx context.Context, commit string) error {
	if commit == "" {
		return nil
	}
	known, err := r.repo.run(ctx, "for-each-ref", "--format=^%(objectname)", "refs/heads", "refs/remotes", "refs/tags")
	if err != nil {
		return err
	}
	own := r.own
	own.input = strings.NewReader(commit + "\n" + known)
	if _, err := own.run(ctx, "rev-list", "--objects", "--quiet", "--stdin"); err != nil {
		return fmt.Errorf("the repository of the sandbox is damaged: %w", err)
	}
	_, err = r.own.run(ctx, "update-ref", received, commit)
	return err
}

// Fetched is what a branch has received.
type Fetched struct {
	Commit  string // of the branch; empty if there was nothing to fetch
	Commits int    // that HEAD of the repository does not have
}

// Fetch makes the branch, or moves it forward. If HEAD of the repository has all commits already,
// Fetch returns the zero value and changes nothing.
func (r *Receiver) Fetch(ctx context.Context) (Fetched, error) {
	tip, err := r.own.commitOf(ctx, received)
	if err != nil || tip == "" {
		return Fetched{}, err
	}
	fetched := Fetched{Commit: tip}
	if fetched.Commits, err = r.count(ctx, tip); err != nil || fetched.Commits == 0 {
		return Fetched{}, err
	}
	if err := r.checkForward(ctx, tip); err != nil {
		return Fetched{}, err
	}
	repo := r.repo
	repo.env = []string{"GIT_ALLOW_PROTOCOL=file", "GIT_ALLOC_LIMIT=1g"}
	repo.args = []string{
		"-c", "fetch.fsckObjects=true", "-c", "transfer.fsckObjects=true", "-c", "fetch.writeCommitGraph=false",
	}
	_, err = repo.run(ctx, "fetch", "--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head", "--no-recurse-submodules",
		"--upload-pack=git-upload-pack", "--", r.own.dir, received+":"+r.branch)
	return fetched, err
}

// count returns how many commits HEAD of the repository does not have.
func (r *Receiver) count(ctx context.Context, tip string) (int, error) {
	args := []string{"rev-list", "--count", tip}
	head, err := r.repo.commitOf(ctx, "HEAD")
	if err != nil {
		return 0, err
	}
	if head != "" {
		args = append(args, "^"+head)
	}
	out, err := r.own.run(ctx, args...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(line(out))
}

// checkForward returns [ErrBranch] if the branch has commits that the received ones do not follow.
func (r *Receiver) checkForward(ctx context.Context, tip string) error {
	old, err := r.repo.commitOf(ctx, r.branch)
	if err != nil || old == "" {
		return err
	}
	_, err = r.own.run(ctx, "merge-base", "--is-ancestor", old, tip)
	if exitCode(err) == 1 {
		return fmt.Errorf("%w: %s has commits that the sandbox does not have; fetch into another name, as with 'envctl fetch SESSION NAME'", ErrBranch, r.name)
	}
	return err
}

// Limits of what is read of a sandbox's refs: the file of one and that of packed refs, in bytes, and
// how many refs lead from one to the next.
const (
	maxRef    = 4 << 10
	maxRefs   = 64 << 20
	maxSymref = 5
)

// objectID matches the ID of an object.
var objectID = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// ResolveHead returns the ID of the commit that HEAD of a repository names, from the files of its
// .git folder, which read returns up to a limit; "" if the current branch has no commit yet.
func ResolveHead(read func(name string, limit int64) ([]byte, error)) (string, error) {
	name := "HEAD"
	for range maxSymref {
		data, err := read(name, maxRef)
		if errors.Is(err, fs.ErrNotExist) && name != "HEAD" {
			return packedRef(read, name)
		}
		if err != nil {
			return "", err
		}
		text := strings.TrimSpace(string(data))
		target, symbolic := strings.CutPrefix(text, "ref:")
		if !symbolic {
			if !objectID.MatchString(text) {
				return "", fmt.Errorf("%w: .git/%q of the sandbox names no commit", ErrFailed, name)
			}
			return text, nil
		}
		if name = strings.TrimSpace(target); !safeRef(name) {
			return "", fmt.Errorf("%w: HEAD of the sandbox is %.200q, which is no branch that git would make; check out another one there", ErrFailed, name)
		}
	}
	return "", fmt.Errorf("%w: HEAD of the sandbox leads nowhere", ErrFailed)
}

// safeRef reports whether git accepts the name of a ref, and thus whether it is a path in .git/refs.
func safeRef(name string) bool {
	if !strings.HasPrefix(name, "refs/") || strings.ContainsAny(name, " ~^:?*[\\\x7f") || strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	for _, r := range name {
		if r < ' ' {
			return false
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// packedRef finds a ref in packed-refs; "" if it is not there.
func packedRef(read func(name string, limit int64) ([]byte, error), name string) (string, error) {
	data, err := read("packed-refs", maxRefs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for l := range strings.Lines(string(data)) {
		id, ref, _ := strings.Cut(line(l), " ")
		if ref == name && objectID.MatchString(id) {
			return id, nil
		}
	}
	return "", nil
}
