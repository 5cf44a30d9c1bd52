package environment

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

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Source is one part of what a workspace starts with. Exactly one of Files, Folder, Git and Tar
// is set.
type Source struct {
	// Into is the folder of the workspace that receives the source. It is relative, and is
	// created if it is missing. Empty means the workspace itself.
	Into string `json:"into,omitempty"`

	Files  []File  `json:"files,omitempty"`  // inline files
	Folder *Folder `json:"folder,omitempty"` // a folder of this machine
	Git    *Git    `json:"git,omitempty"`    // a git repository
	Tar    *Tar    `json:"tar,omitempty"`    // a tar archive

	config string // the configuration file that has it; empty for none
}

// File is an inline file.
type File struct {
	// Path is relative to Source.Into.
	Path string `json:"path"`
	// Content is the file's bytes.
	Content string `json:"content"`
	// Mode is its permission; zero means 0644.
	Mode fs.FileMode `json:"mode,omitempty"`
}

// Folder is a folder of this machine that is copied into the workspace: regular files, folders,
// and symbolic links unchanged, wherever they lead. FIFOs, sockets and devices are an error
// unless they are ignored.
type Folder struct {
	Path string `json:"path"`
	// Ignore leaves out files that match one of these patterns, in the syntax of
	// primitives.WatchOptions.Ignore.
	Ignore []string `json:"ignore,omitempty"`
	// Gitignore copies only what git would: tracked files, and untracked files that no
	// .gitignore, .git/info/exclude or global ignore file leaves out. It never copies the folder
	// .git. It needs git on this machine, and also works in a folder that is not a repository.
	// It is an error if git does not read the repository, for example because it belongs to
	// another user and is no safe.directory, or if an object of a .gitignore is missing: nothing
	// is fetched. No command that the repository names is run.
	Gitignore bool `json:"gitignore,omitempty"`
	// History also makes a git repository of the copy, if Path is the top of one, so that git works
	// there as it does here: with the same commits, branches, tags, HEAD and index. Remotes lose
	// their credentials. The user's name and address are the author of commits there. Nothing else
	// of .git is copied: no hook, no other setting, no stash. Of a repository with more than 256 MiB
	// of objects, the copy has the current branch alone, with its last 50 commits.
	//
	// A merge that has not ended is an error. So is a repository that lacks objects, such as a
	// partial clone. Submodules have their files, and no history.
	History bool `json:"history,omitempty"`
}

// Git is a git repository. Its files at one commit are placed in the workspace. Git on this
// machine clones it, without running any of its hooks and without asking for credentials.
type Git struct {
	// URL is an https, ssh or git address, or a path of this machine. A
	// password in it is percent-encoded: # is %23, / is %2F, % is %25, @ is %40.
	URL string `json:"url"`
	// Ref is a branch, a tag or a full commit ID. Empty means the repository's default branch.
	Ref string `json:"ref,omitempty"`
	// History also places the folder .git in the workspace, with the whole history and with the
	// URL, without credentials, as its remote.
	History bool `json:"history,omitempty"`
}

// Tar is a tar archive, plain or compressed with gzip. Links are kept unchanged. An entry that
// leads out of the receiving folder, by its name or through a link, is an error.
type Tar struct {
	// Path is a file of this machine.
	Path string `json:"path,omitempty"`
	// Reader is read once, instead of a file.
	Reader io.Reader `json:"-"`
	// Root is set for the workspace of another sandbox: the path that it had there. Links that lead
	// into Root by an absolute path lead into the new workspace.
	Root string `json:"-"`
	// Whole says that the workspace gets exactly these files: what an image has put there is removed
	// first, unless it is Sandbox.Workspace.
	Whole bool `json:"-"`
}

// sourceLimit limits one source.
var sourceLimit = archive.Limit{Advice: "ignore what the agent does not need, or place it in several sources"}

// placing puts the sources into the workspace of a new sandbox.
type placing struct {
	*Environment
	states *workspace.Tracker // learns what is placed
}

// place puts the sources into the workspace.
func (e *Environment) place(ctx context.Context, sources []Source, states *workspace.Tracker) error {
	if err := findSources(sources); err != nil {
		return err
	}
	p := placing{e, states}
	for i, s := range sources {
		kind, name := s.describe()
		if err := p.placeOne(ctx, s); err != nil {
			return &SourceError{Index: i, Kind: kind, Name: name, Err: err, config: s.config}
		}
		e.log.Debug("placed a source of the workspace", "index", i, "kind", kind, "name", name)
	}
	return nil
}

// foldersOf returns the sources that are folders of this machine, with absolute paths.
func foldersOf(sources []Source) []Source {
	var list []Source
	for _, s := range sources {
		if s.Folder == nil {
			continue
		}
		f := *s.Folder
		if abs, err := filepath.Abs(f.Path); err == nil {
			f.Path = abs
		}
		list = append(list, Source{Into: s.Into, Folder: &f})
	}
	return list
}

// findSources returns an error for folders and files of this machine that do not exist.
func findSources(sources []Source) error {
	for i, s := range sources {
		kind, name := s.describe()
		if kind == "folder" || kind == "tar" && s.Tar.Reader == nil {
			if err := findSource(kind, name); err != nil {
				return &SourceError{Index: i, Kind: kind, Name: name, Err: err, config: s.config}
			}
		}
	}
	return nil
}

func findSource(kind, name string) error {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w; make it, or name one that exists", ErrConfig, fs.ErrNotExist)
	case err == nil && kind == "folder" && !info.IsDir():
		return fmt.Errorf("%w: %w; name a folder", ErrConfig, primitives.ErrNotDirectory)
	}
	return nil // other errors show when it is read
}

func (e placing) placeOne(ctx context.Context, s Source) error {
	into := path.Join(".", s.Into)
	switch {
	case s.Folder != nil:
		err := e.placeFolder(ctx, into, *s.Folder)
		if errors.Is(err, primitives.ErrNotRegular) {
			err = fmt.Errorf("%w; remove it or leave it out with ignore or gitignore", err)
		}
		return err
	case s.Git != nil:
		return e.placeGit(ctx, into, *s.Git)
	case s.Tar != nil:
		return e.placeTar(ctx, into, *s.Tar)
	default:
		return e.placeFiles(ctx, into, s.Files)
	}
}

func (e placing) placeFiles(ctx context.Context, into string, files []File) error {
	batch := make([]primitives.File, len(files))
	for i, f := range files {
		batch[i] = primitives.File{Path: path.Join(into, f.Path), Content: []byte(f.Content), Mode: f.Mode}
	}
	errs, err := primitives.WriteFiles(ctx, e.prim, batch)
	return errors.Join(append(errs, err)...)
}

func (e placing) placeTar(ctx context.Context, into string, t Tar) (err error) {
	r := t.Reader
	if r == nil {
		f, err := input.OpenStream(ctx, t.Path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		r = f
	}
	if r, err = archive.Open(r); err != nil {
		return err
	}
	if t.Whole {
		if err := e.emptyWorkspace(ctx); err != nil {
			return err
		}
	}
	if t.Root == "" {
		return e.unpackFrom(ctx, into, func(w io.Writer) error { return archive.Copy(w, r, sourceLimit) })
	}
	at := path.Join(e.prim.Paths().Workspace, into)
	return e.unpackFrom(ctx, into, func(w io.Writer) error { return archive.Relink(w, r, t.Root, at, sourceLimit) })
}

// emptyWorkspace removes what a new sandbox has in its own workspace: files of its image.
func (e *Environment) emptyWorkspace(ctx context.Context) error {
	if e.cfg.Sandbox.Workspace != "" {
		return nil // the user's
	}
	found, err := e.prim.List(ctx, ".", primitives.ListOptions{})
	for _, f := range found {
		err = errors.Join(err, e.prim.Remove(ctx, f.Path, true))
	}
	if err != nil {
		return fmt.Errorf("remove what the image has in the workspace: %w; choose another workspace_path", err)
	}
	return nil
}

// unpackFrom unpacks the tar stream that produce writes.
func (e placing) unpackFrom(ctx context.Context, into string, produce func(io.Writer) error) error {
	return archive.Pipe(
		func(learned io.Writer) error {
			return archive.Pipe(produce, func(r io.Reader) error {
				return primitives.Unpack(ctx, e.prim, into, io.TeeReader(r, learned))
			})
		},
		func(r io.Reader) error {
			// Without it the next Take reads the files back, and says what is wrong.
			if err := e.states.Learn(ctx, r, into, e.states.Blobs, e.states.ArchiveLimit()); err != nil {
				e.log.Debug("the state of the workspace is read back", eventlog.Error, err)
			}
			_, err := io.Copy(io.Discard, r)
			return err
		},
	)
}

// placeFolder copies a folder of this machine.
func (e placing) placeFolder(ctx context.Context, into string, f Folder) error {
	from := archive.Folder{Path: f.Path, Limit: sourceLimit, Skip: func(name string) bool {
		return workspace.IgnoredItself(f.Ignore, name) || f.History && path.Base(name) == ".git"
	}}
	if f.Gitignore {
		names, err := hostgit.Files(ctx, f.Path)
		if err != nil {
			return err
		}
		from.Names = append([]string{}, names...) // not nil, which would mean all files
		from.Skip = func(name string) bool { return workspace.Ignored(f.Ignore, name) }
	}
	if err := e.unpackFrom(ctx, into, func(w io.Writer) error { return from.Pack(ctx, w) }); err != nil || !f.History {
		return err
	}
	return e.placeHistory(ctx, into, f)
}

// maxHistory is how many bytes of objects are copied as the whole history of a folder.
const maxHistory = 256 << 20

// placeHistory makes a repository of a copied folder, if the folder is the top of one.
func (e placing) placeHistory(ctx context.Context, into string, f Folder) (err error) {
	dir, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	from, err := filepath.Abs(f.Path)
	if err != nil {
		return err
	}
	left := func(name string) bool { return workspace.Ignored(f.Ignore, name) }
	recent, err := hostgit.CopyRepository(ctx, from, dir, maxHistory, left)
	switch {
	case errors.Is(err, hostgit.ErrNoRepository):
		return nil
	case err != nil:
		return err
	case recent:
		e.cfg.tell(fmt.Sprintf("the history of %s is larger than %d MiB: the sandbox has the current branch, with its last %d commits",
			f.Path, maxHistory>>20, hostgit.RecentCommits))
	}
	made := archive.Folder{Path: dir, Limit: sourceLimit}
	return e.unpackFrom(ctx, into, func(w io.Writer) error { return made.Pack(ctx, w) })
}

// placeGit clones the repository on this machine and copies it from there.
func (e placing) placeGit(ctx context.Context, into string, g Git) (err error) {
	dir, err := os.MkdirTemp("", "agentenv-git-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := hostgit.Repository(g).Clone(ctx, dir, sourceLimit); err != nil {
		return err
	}
	f := Folder{Path: dir}
	if !g.History {
		// Only the top-level .git is git's own; a repository cannot contain another.
		f.Ignore = []string{".git"}
	}
	return e.placeFolder(ctx, into, f)
}

// describe returns how errors name the source.
func (s Source) describe() (kind, name string) {
	switch {
	case s.Folder != nil:
		return "folder", s.Folder.Path
	case s.Git != nil:
		return "git", hostgit.WithoutCredentials(s.Git.URL)
	case s.Tar != nil && s.Tar.Path != "":
		return "tar", s.Tar.Path
	case s.Tar != nil:
		return "tar", "(reader)"
	case len(s.Files) == 1:
		return "files", s.Files[0].Path
	default:
		return "files", fmt.Sprintf("(%d of them)", len(s.Files))
	}
}

// check returns an error for an invalid source, before anything is placed.
func (s Source) check() error {
	set := 0
	for _, is := range []bool{len(s.Files) > 0, s.Folder != nil, s.Git != nil, s.Tar != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%d of files, folder, git and tar are set; set exactly one", set)
	}
	if err := checkPath(s.Into, true); err != nil {
		return fmt.Errorf("into: %w", err)
	}
	for i, f := range s.Files {
		if err := checkPath(f.Path, false); err != nil {
			return fmt.Errorf("files[%d]: path: %w", i, err)
		}
		if f.Mode&^fs.ModePerm != 0 {
			return fmt.Errorf("files[%d]: mode: only permission bits, up to 0777, are allowed", i)
		}
	}
	switch {
	case s.Folder != nil && s.Folder.Path == "":
		return errors.New("folder: path is missing")
	case s.Folder != nil:
		if err := workspace.CheckPatterns(s.Folder.Ignore); err != nil {
			return fmt.Errorf("folder: ignore: %w", err)
		}
	case s.Git != nil:
		return hostgit.Repository(*s.Git).Check()
	case s.Tar != nil && (s.Tar.Path == "") == (s.Tar.Reader == nil):
		return errors.New("tar: it needs either a path or a reader; set one of them")
	}
	return nil
}

// checkPath returns an error for a path that is not relative or leads out of the workspace.
func checkPath(name string, mayBeEmpty bool) error {
	switch {
	case name == "" && mayBeEmpty:
		return nil
	case name == "":
		return errors.New("it is missing")
	case strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("%q: %w: it contains a NUL byte", name, fs.ErrInvalid)
	case workspace.LeadsOut(path.Clean(name)):
		return fmt.Errorf("%q: %w; give a path relative to the workspace", name, primitives.ErrPathEscape)
	}
	return nil
}
