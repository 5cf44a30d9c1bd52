package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Branch is a branch of a repository of this machine that has received the work of a sandbox.
type Branch struct {
	Name string `json:"name"`
	// Commit is the ID of its last commit. It is empty if there was nothing to fetch; then there
	// need not be such a branch.
	Commit string `json:"commit,omitempty"`
	// Commits is how many commits the branch has that HEAD of the repository does not have.
	Commits int `json:"commits"`
	// LeftOut names changed files that the branch lacks: those in submodules and those with a git
	// filter, such as that of Git LFS. Apply and Patch bring them.
	LeftOut []string `json:"left_out,omitempty"`
}

// branchLimit limits what FetchBranch reads of a sandbox: its objects, and its changed files.
var branchLimit = archive.Limit{Bytes: 1 << 30, Advice: "fetch the commits with git in the sandbox, or bring the files with a patch"}

// FetchBranch makes a branch in the git repository dir of this machine, or moves it forward, with
// the commits that HEAD in the workspace has: their authors, dates and messages. Changes that the
// agent has not committed follow as one more commit by the user of this machine, without new files
// that git ignores in dir; [Environment.Changes] says what counts as a change. It changes no file of the folder, no other branch, and
// runs no hook.
//
// dir must be the top of a repository's work tree: usually the folder that the workspace was
// copied from, with Folder.History. The sandbox needs no git. FetchBranch reads files of .git there,
// at most 1 GiB, and git checks all new objects before the repository gets them; nothing else of
// the sandbox's repository, such as its configuration, has any effect here.
//
// The error is [ErrBranch] if the branch is checked out, or has commits that HEAD in the workspace
// does not have; fs.ErrNotExist if the workspace is no repository; primitives.ErrLimit for too much
// data; and [ErrGit] for damaged objects.
func (e *Environment) FetchBranch(ctx context.Context, dir, name string) (Branch, error) {
	return e.fetchBranch(ctx, dir, name, branchLimit)
}

func (e *Environment) fetchBranch(ctx context.Context, dir, name string, limit archive.Limit) (b Branch, err error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return Branch{}, err
	}
	defer leave()
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetch the branch %s: %w", name, err)
		}
	}()
	if dir, err = filepath.Abs(dir); err != nil {
		return Branch{}, err
	}
	r, err := hostgit.NewReceiver(ctx, dir, name)
	if err != nil {
		return Branch{}, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := e.receiveCommits(ctx, r, limit); err != nil {
		return Branch{}, err
	}
	b = Branch{Name: name}
	if b.LeftOut, err = e.receiveRest(ctx, r, dir, limit); err != nil {
		return Branch{}, err
	}
	fetched, err := r.Fetch(ctx)
	b.Commit, b.Commits = fetched.Commit, fetched.Commits
	return b, err
}

// CheckBranch returns those errors of [Environment.FetchBranch] that are known without a sandbox.
func CheckBranch(ctx context.Context, dir, name string) error {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = hostgit.CheckBranch(ctx, dir, name)
	}
	if err != nil {
		return fmt.Errorf("fetch the branch %s: %w", name, err)
	}
	return nil
}

// receiveCommits takes the commits of HEAD in the workspace.
func (e *Environment) receiveCommits(ctx context.Context, r *hostgit.Receiver, limit archive.Limit) error {
	for _, name := range []string{".git", ".git/objects"} {
		info, err := e.prim.Stat(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("the workspace is no git repository (%w); copy the folder with its history, or bring the changes as a patch", fs.ErrNotExist)
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s in the workspace: %w; nothing is fetched from another place", name, primitives.ErrNotDirectory)
		}
	}
	head, err := hostgit.ResolveHead(func(name string, most int64) ([]byte, error) {
		return primitives.ReadFile(ctx, e.prim, path.Join(".git", name), most)
	})
	if err != nil {
		return err
	}
	known, err := e.keptPacks(ctx)
	if err != nil {
		return err
	}
	if err := e.receiveObjects(ctx, r, known, limit); err != nil {
		return err
	}
	err = r.SetHead(ctx, head)
	if errors.Is(err, ErrGit) && len(known) > 0 {
		// The kept packs are not from this repository.
		if err := e.receiveObjects(ctx, r, nil, limit); err != nil {
			return err
		}
		err = r.SetHead(ctx, head)
	}
	return err
}

// keptPack matches the mark of a pack that was brought into the sandbox.
var keptPack = regexp.MustCompile(`^pack-[0-9a-f]+\.keep$`)

// keptPacks returns patterns for the packs that were brought into the sandbox.
func (e *Environment) keptPacks(ctx context.Context) (patterns []string, err error) {
	infos, err := e.prim.List(ctx, ".git/objects/pack", primitives.ListOptions{})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, info := range infos {
		if keptPack.MatchString(info.Path) {
			patterns = append(patterns, "pack/"+strings.TrimSuffix(info.Path, "keep")+"*")
		}
	}
	return patterns, err
}

func (e *Environment) receiveObjects(ctx context.Context, r *hostgit.Receiver, without []string, limit archive.Limit) error {
	packed, err := primitives.Pack(ctx, e.prim, ".git/objects", primitives.PackOptions{Ignore: append([]string{"info", "pack/*.idx"}, without...)})
	if err != nil {
		return err
	}
	return errors.Join(r.Take(ctx, packed, limit), packed.Close())
}

// receiveRest commits what is not committed in the workspace, and returns what git cannot commit. It
// leaves out new files that git ignores in dir.
func (e *Environment) receiveRest(ctx context.Context, r *hostgit.Receiver, dir string, limit archive.Limit) ([]string, error) {
	changes, err := e.Changes(ctx)
	if err != nil {
		return nil, err
	}
	var created []string
	for _, c := range changes {
		if c.Kind == Created {
			created = append(created, c.Path)
		}
	}
	ignored, err := hostgit.Ignored(ctx, dir, nil, created)
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool, len(ignored))
	for _, name := range ignored {
		out[name] = true
	}
	changes = slices.DeleteFunc(changes, func(c Change) bool { return c.Kind == Created && out[c.Path] })
	left := &allowance{left: limit.Bytes, limit: limit}
	files := make([]hostgit.File, 0, len(changes))
	for _, c := range changes {
		f := hostgit.File{Path: c.Path, Mode: c.NewMode}
		switch {
		case c.Kind == Deleted:
		case c.NewMode&fs.ModeSymlink != 0:
			info, err := e.prim.Stat(ctx, c.Path)
			if err != nil {
				return nil, err
			}
			f.Target = info.Target
		default:
			f.Open = func(ctx context.Context) (io.ReadCloser, error) {
				r, err := e.prim.Open(ctx, c.Path)
				return &allowed{r, left}, err
			}
		}
		files = append(files, f)
	}
	return r.CommitRest(ctx, files, "Changes that the agent did not commit\n\nThey were in the sandbox "+e.ID()+" when this branch was fetched.")
}

// allowance is how many bytes all files may still have.
type allowance struct {
	left  int64
	limit archive.Limit
}

// allowed is a file that counts towards an allowance.
type allowed struct {
	io.ReadCloser
	of *allowance
}

// Read implements io.Reader.
func (a *allowed) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.of.left -= int64(n); a.of.left < 0 {
		return 0, fmt.Errorf("%w: the changed files have more than %d MiB; %s", primitives.ErrLimit, a.of.limit.Bytes>>20, a.of.limit.Advice)
	}
	return n, err
}
