package environment

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// inHistory creates an environment with a copy of a repository and its history.
func inHistory(t *testing.T, box Sandbox, dir string) *Environment {
	t.Helper()
	return create(t, Config{Sandbox: box, Workspace: []Source{{Folder: &Folder{Path: dir, Gitignore: true, History: true}}}})
}

// work changes the workspace of any sandbox as an agent with git would: here, on a copy that goes
// back.
func work(t *testing.T, env *Environment, do func(dir string)) {
	t.Helper()
	packed, err := primitives.Pack(t.Context(), env.Primitive(), ".", primitives.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "--no-same-owner", "-C", dir)
	unpack.Stdin = packed
	if out, err := unpack.CombinedOutput(); err != nil || packed.Close() != nil {
		t.Fatalf("%v: %s", err, out)
	}
	do(dir)
	infos, err := env.Primitive().List(t.Context(), ".", primitives.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if err := env.Primitive().Remove(t.Context(), info.Path, true); err != nil {
			t.Fatal(err)
		}
	}
	var back bytes.Buffer
	if err := (archive.Folder{Path: dir}).Pack(t.Context(), &back); err != nil {
		t.Fatal(err)
	}
	if err := primitives.Unpack(t.Context(), env.Primitive(), ".", &back); err != nil {
		t.Fatal(err)
	}
}

// commit commits a file as the agent does.
func commit(t *testing.T, dir, message string, files tree) {
	t.Helper()
	files.replace(t, dir)
	host(t, dir, "add", "-A")
	host(t, dir, "-c", "user.name=agent", "commit", "-q", "-m", message, "--author=Agent <agent@example.com>")
}

// fetched fetches a branch that must have some commits.
func fetched(t *testing.T, env *Environment, dir, name string, commits int) Branch {
	t.Helper()
	b, err := env.FetchBranch(t.Context(), dir, name)
	if err != nil || b.Commits != commits || b.Name != name {
		t.Fatalf("fetch the branch: %+v, %v; want %d commits", b, err, commits)
	}
	if commits > 0 && host(t, dir, "rev-parse", "refs/heads/"+name) != b.Commit {
		t.Fatalf("the branch is not at %s", b.Commit)
	}
	return b
}

// The commits of the agent come back with their authors and messages, and what it did not commit
// in one more, from a sandbox without git, too. The folder itself stays as it was.
func TestTheCommitsOfASandboxComeBackAsABranch(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		dir := repository(t)
		tree{"version": "of the user"}.replace(t, dir)
		before := host(t, dir, "status", "--porcelain=v2", "--branch")
		env := inHistory(t, box, dir)
		if b := fetched(t, env, dir, "work", 0); b.Commit != "" {
			t.Errorf("without work there is %+v", b)
		}
		work(t, env, func(at string) {
			host(t, at, "checkout", "-q", "-b", "agents/own")
			host(t, at, "stash", "-q")
			commit(t, at, "one\n\nand why", tree{"one": "1", "link": "-> one", "run": "x:1"})
			commit(t, at, "two", tree{"two": "2"})
			host(t, at, "stash", "pop", "-q")
			tree{"one": "not committed", "three": "3"}.replace(t, at)
			host(t, at, "gc", "-q")
			if err := os.Remove(filepath.Join(at, "dir", "link")); err != nil {
				t.Fatal(err)
			}
		})
		fetched(t, env, dir, "work", 3)
		want := "Changes that the agent did not commit\ntwo Agent agent@example.com\none Agent agent@example.com\nv2 a a@example.com\nv1 a a@example.com"
		if got := host(t, dir, "log", "--format=%s %an %ae", "work"); !strings.HasPrefix(got, "Changes that the agent did not commit ") ||
			!strings.HasSuffix(got, strings.TrimPrefix(want, "Changes that the agent did not commit")) {
			t.Errorf("the branch has\n%s", got)
		}
		if got := host(t, dir, "log", "--format=%b", "-1", "work~1^"); !strings.Contains(got, "and why") {
			t.Errorf("the message of the first commit has lost %q", got)
		}
		if got := host(t, dir, "diff", "--name-status", "main", "work"); got != "D\tdir/link\nA\tlink\nA\tone\nA\trun\nA\tthree\nA\ttwo" {
			t.Errorf("the branch changes\n%s", got) // version is the user's
		}
		if got := host(t, dir, "show", "work:one") + host(t, dir, "ls-tree", "work", "run", "link"); !strings.HasPrefix(got, "not committed120000") || !strings.Contains(got, "100755") {
			t.Errorf("the branch has %s", got)
		}
		if after := host(t, dir, "status", "--porcelain=v2", "--branch"); after != before {
			t.Errorf("the folder was changed: %s, before %s", after, before)
		}
		host(t, dir, "fsck", "--full", "--strict")
		work(t, env, func(at string) { commit(t, at, "three", tree{"more": "1"}) })
		if _, err := env.FetchBranch(t.Context(), dir, "work"); !errors.Is(err, ErrBranch) {
			t.Errorf("the commit of what was not committed would be lost: error %v, want ErrBranch", err)
		}
		fetched(t, env, dir, "work-2", 3)
	})
}

// What is not committed may be fetched again, and again after more changes. A commit of the user's
// own on the branch is never built upon.
func TestWhatIsNotCommittedMovesABranchForward(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	env := inHistory(t, sandbox(t), dir)
	at := env.Primitive().Paths().Workspace
	tree{"one": "1"}.replace(t, at)
	first := fetched(t, env, dir, "work", 1)
	if again := fetched(t, env, dir, "work", 1); again.Commit != first.Commit {
		t.Errorf("without a change the branch moved from %s to %s", first.Commit, again.Commit)
	}
	tree{"one": "2"}.replace(t, at)
	fetched(t, env, dir, "work", 2)
	tree{"two": "2"}.replace(t, at)
	fetched(t, env, dir, "work", 3)
	if got := host(t, dir, "rev-parse", "work~2") + host(t, dir, "show", "work:one", "work~2:one"); got != first.Commit+"21" {
		t.Errorf("the branch has %s", got)
	}
	other := filepath.Join(t.TempDir(), "tree")
	host(t, dir, "worktree", "add", "-q", other, "work")
	commit(t, other, "of the user", tree{"mine": "1"})
	host(t, dir, "worktree", "remove", other)
	if _, err := env.FetchBranch(t.Context(), dir, "work"); !errors.Is(err, ErrBranch) {
		t.Errorf("on the user's commit: error %v, want ErrBranch", err)
	}
}

// What the agent goes on with moves the branch forward.
func TestABranchMovesForward(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	env := inHistory(t, sandbox(t), dir)
	at := env.Primitive().Paths().Workspace
	commit(t, at, "one", tree{"one": "1"})
	fetched(t, env, dir, "work/of/agents", 1)
	commit(t, at, "two", tree{"two": "1"})
	fetched(t, env, dir, "work/of/agents", 2)
	fetched(t, env, dir, "work/of/agents", 2) // again
	host(t, dir, "merge", "-q", "--ff-only", "work/of/agents")
	fetched(t, env, dir, "other", 0)
	for name, says := range map[string]string{
		"main": "checked out", "work": "beside it", "work/of/agents/x": "beside it", "next": "does not have",
		"a..b": "no name", "": "no name", "-x": "no name", "HEAD": "no name", "a b": "no name",
	} {
		if _, err := env.FetchBranch(t.Context(), dir, name); !errors.Is(err, ErrBranch) || !strings.Contains(err.Error(), says) {
			if name != "next" || err != nil { // next has nothing to receive: main has all commits
				t.Errorf("%q: %v, want ErrBranch with %q", name, err, says)
			}
		}
	}
	commit(t, at, "three", tree{"three": "1"})
	if _, err := env.FetchBranch(t.Context(), dir, "next"); !errors.Is(err, ErrBranch) || !strings.Contains(err.Error(), "does not have") {
		t.Errorf("error %v, want ErrBranch", err)
	}
	tree2 := filepath.Join(t.TempDir(), "tree")
	host(t, dir, "worktree", "add", "-q", "-b", "busy", tree2)
	if err := CheckBranch(t.Context(), dir, "busy"); !errors.Is(err, ErrBranch) {
		t.Errorf("of another work tree: %v, want ErrBranch", err)
	}
	fetched(t, env, tree2, "from-a-work-tree", 1)
	if err := CheckBranch(t.Context(), filepath.Join(dir, "dir"), "x"); err == nil || !strings.Contains(err.Error(), "top") {
		t.Errorf("below the top: %v", err)
	}
}

// The branch comes back to repositories of all kinds.
func TestABranchOfAllKindsOfRepositories(t *testing.T) {
	noFilesLeft(t)
	for name, begin := range map[string]func(t *testing.T, dir string) string{
		"shallow": func(t *testing.T, dir string) string {
			t.Helper()
			clone := filepath.Join(t.TempDir(), "clone")
			host(t, dir, "clone", "-q", "--depth=1", "file://"+dir, clone)
			return clone
		},
		"shared": func(t *testing.T, dir string) string {
			t.Helper()
			clone := filepath.Join(t.TempDir(), `clone "of"`)
			host(t, dir, "clone", "-q", "--shared", dir, clone)
			return clone
		},
		"SHA-256": func(t *testing.T, _ string) string {
			t.Helper()
			dir := folderWith(t, tree{"a": "1"})
			host(t, dir, "init", "-q", "-b", "main", "--object-format=sha256")
			host(t, dir, "add", "a")
			host(t, dir, "commit", "-q", "-m", "one")
			return dir
		},
		"without a commit": func(t *testing.T, _ string) string {
			t.Helper()
			dir := t.TempDir()
			host(t, dir, "init", "-q", "-b", "main")
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := begin(t, repository(t))
			env := inHistory(t, sandbox(t), dir)
			at := env.Primitive().Paths().Workspace
			writeIn(t, env, "rest", "1")
			only := fetched(t, env, dir, "rest", 1)
			if got := host(t, dir, "ls-tree", "--name-only", only.Commit, "rest"); got != "rest" {
				t.Errorf("the branch lacks what was not committed: %q", got)
			}
			commit(t, at, "one", tree{"one": "1"})
			b := fetched(t, env, dir, "work", 1)
			if got := host(t, dir, "log", "-1", "--format=%s", b.Commit); got != "one" {
				t.Errorf("the last commit is %s", got)
			}
			host(t, dir, "fsck", "--full")
		})
	}
}

// Files that git here cannot commit are named, and line ends are the user's.
func TestWhatCannotBeCommittedIsNamed(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	host(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", repository(t), "sub")
	host(t, dir, "config", "core.autocrlf", "true")
	tree{".gitattributes": "*.bin filter=large\n"}.write(t, dir)
	host(t, dir, "add", "-A")
	host(t, dir, "commit", "-q", "-m", "sub")
	env := inHistory(t, sandbox(t), dir)
	for name, content := range map[string]string{"a.bin": "large", "sub/version": "changed", "crlf": "1\r\n2\r\n"} {
		writeIn(t, env, name, content)
	}
	b := fetched(t, env, dir, "work", 1)
	if got := strings.Join(b.LeftOut, " "); got != "a.bin sub/version" {
		t.Errorf("left out: %s", got)
	}
	if got := host(t, dir, "cat-file", "-s", "work:crlf"); got != "4" {
		t.Errorf("the line ends were not converted: %s bytes", got)
	}
}

func TestNoRepositoryInTheWorkspace(t *testing.T) {
	dir := repository(t)
	env := create(t, Config{Workspace: []Source{{Folder: &Folder{Path: dir, Gitignore: true}}}})
	if _, err := env.FetchBranch(t.Context(), dir, "work"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "history") {
		t.Errorf("error %v, want fs.ErrNotExist with advice", err)
	}
	env = inHistory(t, sandbox(t), dir)
	if _, err := env.FetchBranch(t.Context(), t.TempDir(), "work"); err == nil || !strings.Contains(err.Error(), "repository") {
		t.Errorf("into a folder without a repository: %v", err)
	}
}
