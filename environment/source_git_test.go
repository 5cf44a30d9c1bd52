package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/hostgit"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/test/testneed"
	"github.com/agentenv-dev/agentenv/primitives"
)

// host runs git as its user would.
func host(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository creates a repository with v1 on the tag, v2 on main, and v3 on the branch next.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	host(t, dir, "init", "-q", "-b", "main")
	commit := func(version string) {
		tree{"version": version, "run.sh": "x:#!/bin/sh\n", "dir/link": "-> ../version", ".gitignore": "*.log\n"}.replace(t, dir)
		host(t, dir, "add", "-A")
		host(t, dir, "commit", "-q", "-m", version)
	}
	commit("v1")
	host(t, dir, "tag", "v1")
	commit("v2")
	host(t, dir, "checkout", "-q", "-b", "next")
	commit("v3")
	host(t, dir, "checkout", "-q", "main")
	return dir
}

// replace writes files, which may exist.
func (tr tree) replace(t *testing.T, dir string) {
	t.Helper()
	for name := range tr {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	tr.write(t, dir)
}

func versionTree(version string) tree {
	return tree{"version": version, "run.sh": "x:#!/bin/sh\n", "dir/link": "-> ../version", ".gitignore": "*.log\n"}
}

func TestGitignoreIsThatOfGit(t *testing.T) {
	noFilesLeft(t)
	files := tree{
		".gitignore": "*.log\n/build/\n!keep.log\n", "a": "1", "x.log": "1", "keep.log": "1", "build/out": "1",
		"sub/.gitignore": "secret\n", "sub/secret": "1", "sub/build/in": "1", "naïve ✨": "1", "l": "-> a", "run": "x:1",
		"new\nline": "1",
	}
	want := tree{
		".gitignore": files[".gitignore"], "a": "1", "keep.log": "1", "sub/.gitignore": "secret\n",
		"sub/build/in": "1", "naïve ✨": "1", "l": "-> a", "run": "x:1", "new\nline": "1",
	}
	t.Run("in a folder that is no repository", func(t *testing.T) {
		dir := folderWith(t, files)
		placed(t, Source{Folder: &Folder{Path: dir, Gitignore: true}}).mustBe(t, want)
		if _, err := os.Stat(filepath.Join(dir, ".git")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("the folder was made a repository")
		}
	})
	t.Run("in a repository", func(t *testing.T) {
		dir := folderWith(t, files)
		marker := filepath.Join(t.TempDir(), "ran")
		host(t, dir, "init", "-q")
		host(t, dir, "add", "-f", "a", "x.log", "run")
		// A tracked file that is gone, a tracked file that is ignored, and a command in the
		// configuration.
		if err := os.Remove(filepath.Join(dir, "run")); err != nil {
			t.Fatal(err)
		}
		host(t, dir, "config", "core.fsmonitor", "touch "+marker+"; false")
		tree{"nested/n.log": "1", "nested/b": "1", "nested/.gitignore": "ignored\n", "nested/ignored": "1"}.write(t, dir)
		host(t, filepath.Join(dir, "nested"), "init", "-q")
		got := placed(t, Source{Folder: &Folder{Path: dir, Gitignore: true, Ignore: []string{"l"}}})
		repo := tree{"x.log": "1", "nested/b": "1", "nested/n.log": "1", "nested/.gitignore": "ignored\n"}
		for name, content := range want {
			repo[name] = content
		}
		delete(repo, "run")
		delete(repo, "l")
		got.mustBe(t, repo)
		if _, err := os.Stat(marker); err == nil {
			t.Error("a command of the repository's configuration was run")
		}
	})
	t.Run("in a folder of a repository", func(t *testing.T) {
		dir := folderWith(t, tree{".gitignore": "*.log\n", "top": "1", "pkg/a": "1", "pkg/x.log": "1"})
		host(t, dir, "init", "-q")
		placed(t, Source{Folder: &Folder{Path: filepath.Join(dir, "pkg"), Gitignore: true}}).mustBe(t, tree{"a": "1"})
	})
}

// A repository that git does not read must not be listed like a folder without git: files that
// its .git/info/exclude leaves out would be copied.
func TestARepositoryThatGitDoesNotReadIsAnError(t *testing.T) {
	noFilesLeft(t)
	t.Setenv("HOME", t.TempDir()) // nothing is a safe.directory
	config := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { tree{".git/config": text}.replace(t, dir) }
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		says  string
	}{
		"it is of another user":      {give, "safe.directory"},
		"its configuration is wrong": {config("[core"), "bad config"},
		"it is of a later git":       {config("[core]\nrepositoryformatversion = 99\n"), "found 99"},
		"its HEAD is gone": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, ".git", "HEAD")); err != nil {
				t.Fatal(err)
			}
		}, "not a git repository"},
		"its link leads nowhere": {func(t *testing.T, dir string) {
			tree{".git": "gitdir: /no/such/repository\n"}.replace(t, dir)
		}, "/no/such/repository"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folderWith(t, tree{"a": "1", "pkg/a": "1", "pkg/secret": "1"})
			host(t, dir, "init", "-q")
			tree{".git/info/exclude": "secret\n"}.replace(t, dir)
			c.spoil(t, dir)
			for _, folder := range []string{dir, filepath.Join(dir, "pkg")} {
				err := refused(t, Source{Folder: &Folder{Path: folder, Gitignore: true}})
				if !errors.Is(err, ErrGit) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "gitignore") {
					t.Errorf("%s: %v, want ErrGit with what git says and what to do", folder, err)
				}
			}
			if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
				t.Fatal(err)
			}
			placed(t, Source{Folder: &Folder{Path: filepath.Join(dir, "pkg"), Gitignore: true}}).mustBe(t, tree{"a": "1", "secret": "1"})
		})
	}
	t.Run("an empty .git is no repository", func(t *testing.T) {
		dir := folderWith(t, tree{".gitignore": "x\n", "x": "1", "a": "1"})
		if err := os.Mkdir(filepath.Join(dir, ".git"), 0o700); err != nil {
			t.Fatal(err)
		}
		placed(t, Source{Folder: &Folder{Path: dir, Gitignore: true}}).mustBe(t, tree{".gitignore": "x\n", "a": "1"})
	})
}

// Like git itself, accept a repository of the user that called sudo.
func TestARepositoryOfTheUserOfSudoIsRead(t *testing.T) {
	noFilesLeft(t)
	t.Setenv("HOME", t.TempDir())
	dir := folderWith(t, tree{"a": "1", "secret": "1"})
	host(t, dir, "init", "-q")
	tree{".git/info/exclude": "secret\n"}.replace(t, dir)
	give(t, dir)
	t.Setenv("SUDO_UID", strconv.Itoa(stranger))
	placed(t, Source{Folder: &Folder{Path: dir, Gitignore: true}}).mustBe(t, tree{"a": "1"})
}

// stranger is a user ID that need not exist on this machine.
const stranger = 12345

// give makes a folder and its files those of another user.
func give(t *testing.T, dir string) {
	t.Helper()
	testneed.Root(t, "nobody else can give files away")
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, stranger, stranger))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestGitRefs(t *testing.T) {
	noFilesLeft(t)
	repo := repository(t)
	for name, c := range map[string]struct{ ref, want string }{
		"the default branch": {"", "v2"},
		"a branch":           {"next", "v3"},
		"a tag":              {"v1", "v1"},
		"a commit":           {host(t, repo, "rev-parse", "main~1"), "v1"},
		"a full ref":         {"refs/heads/next", "v3"},
	} {
		t.Run(name, func(t *testing.T) {
			placed(t, Source{Git: &Git{URL: repo, Ref: c.ref}}).mustBe(t, versionTree(c.want))
			if name == "a full ref" {
				return
			}
			env := create(t, Config{Workspace: []Source{{Git: &Git{URL: "file://" + repo, Ref: c.ref, History: true}}}})
			dir := env.Primitive().Paths().Workspace
			readTree(t, dir).mustBe(t, versionTree(c.want))
			if got := host(t, dir, "status", "--porcelain"); got != "" {
				t.Errorf("the clone is not clean: %s", got)
			}
			if got := host(t, dir, "log", "--format=%s", "-1"); got != c.want {
				t.Errorf("HEAD is %s, want %s", got, c.want)
			}
			if got := host(t, dir, "branch", "--show-current"); c.ref == "next" && got != "next" || c.ref == "" && got != "main" {
				t.Errorf("on branch %q", got)
			}
		})
	}
}

// Trees that each name the next one twice make two thousand files of 12 objects.
func TestARepositoryWithTooManyFilesIsNotCheckedOut(t *testing.T) {
	repo := t.TempDir()
	host(t, repo, "init", "-q", "--initial-branch=main")
	tree{"f": "1"}.write(t, repo)
	object, kind := host(t, repo, "hash-object", "-w", "f"), "100644 blob"
	for range 11 {
		cmd := exec.Command("git", "mktree")
		cmd.Dir, cmd.Stdin = repo, strings.NewReader(fmt.Sprintf("%[1]s %[2]s\ta\n%[1]s %[2]s\tb\n", kind, object))
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		object, kind = strings.TrimSpace(string(out)), "040000 tree"
	}
	host(t, repo, "update-ref", "refs/heads/main", host(t, repo, "commit-tree", "-m", "bomb", object))
	for _, history := range []bool{false, true} {
		dir := t.TempDir()
		err := hostgit.Repository{URL: "file://" + repo, History: history}.Clone(t.Context(), dir, archive.Limit{Entries: 1024})
		if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "1024 files") {
			t.Errorf("with history %v: error %v, want primitives.ErrLimit", history, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != ".git" {
			t.Errorf("with history %v: %d entries, want .git alone, %v", history, len(entries), err)
		}
	}
}

func TestGitFailuresAreNamed(t *testing.T) {
	noFilesLeft(t)
	repo := repository(t)
	for name, g := range map[string]Git{
		"no such ref":        {URL: repo, Ref: "missing"},
		"no such repository": {URL: filepath.Join(repo, "missing")},
		"no such ref in all": {URL: repo, Ref: "missing", History: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refused(t, Source{Git: &g}); !errors.Is(err, ErrGit) || err.Kind != "git" {
				t.Errorf("error %v, want ErrGit", err)
			}
		})
	}
}

func TestCredentialsOfAURLAreNotSeen(t *testing.T) {
	const address = "127.0.0.1:1" // any other free port may belong to another test when it is dialed
	err := refused(t, Source{Git: &Git{URL: "http://user:hunter2hunter2@" + address + "/x.git"}})
	if !errors.Is(err, ErrGit) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "user") {
		t.Errorf("error %v", err)
	}
}

func TestNoHookOfTheHostRuns(t *testing.T) {
	home := t.TempDir()
	marker := filepath.Join(home, "ran")
	hooks := tree{"hooks/post-checkout": "x:#!/bin/sh\ntouch " + marker + "\n"}
	hooks.write(t, filepath.Join(home, "template"))
	tree{".gitconfig": "[init]\n\ttemplateDir = " + filepath.Join(home, "template") + "\n"}.write(t, home)
	repo := repository(t)
	hooks.write(t, filepath.Join(repo, ".git"))
	t.Setenv("HOME", home)
	env := create(t, Config{Workspace: []Source{{Git: &Git{URL: repo, History: true}}}})
	if _, err := os.Stat(marker); err == nil {
		t.Error("a hook was run")
	}
	if _, err := os.Stat(filepath.Join(env.Primitive().Paths().Workspace, ".git", "hooks")); err == nil {
		t.Error("a hook came into the workspace")
	}
}

func TestCredentialsAreUsedAndStayOutside(t *testing.T) {
	noFilesLeft(t)
	repo := repository(t)
	host(t, repo, "update-server-info")
	files := http.FileServer(http.Dir(filepath.Join(repo, ".git")))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "hunter2hunter2" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		files.ServeHTTP(w, r)
	}))
	defer server.Close()
	address := strings.Replace(server.URL, "http://", "http://me:hunter2hunter2@", 1)
	placed(t, Source{Git: &Git{URL: address, Ref: "next"}}).mustBe(t, versionTree("v3"))

	env := create(t, Config{Workspace: []Source{{Git: &Git{URL: address, Ref: "main", History: true}}}})
	dir := env.Primitive().Paths().Workspace
	if got := host(t, dir, "remote", "get-url", "origin"); got != server.URL {
		t.Errorf("the remote is %q, want %q", got, server.URL)
	}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name)
		if bytes.Contains(content, []byte("hunter2")) {
			t.Errorf("the password is in %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Source{Git: &Git{URL: strings.Replace(address, "2@", "3@", 1)}}); !errors.Is(err, ErrGit) || strings.Contains(err.Error(), "hunter") {
		t.Errorf("a wrong password: %v", err)
	}
}

func TestACancelledGitLeavesNoProcess(t *testing.T) {
	noFilesLeft(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough, over := errors.New("enough"), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel(enough)
		<-over
	}))
	defer server.Close()
	defer close(over)
	_, err := Create(ctx, Config{Sandbox: sandbox(t), Workspace: []Source{{Git: &Git{URL: server.URL}}}})
	if !errors.Is(err, enough) {
		t.Errorf("error %v, want the cause", err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range commands {
		if command, err := os.ReadFile(name); err == nil && bytes.Contains(command, []byte(server.URL)) {
			t.Errorf("%s is left: %q", name, command)
		}
	}
}

// unclear are URLs whose password, made of pieces that begin with "hunter", is not
// percent-encoded. Package hostgit tests more of them.
var unclear = []Git{
	{URL: "https://me:hunter1#hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1/hunter2-0123@example.com/x.git"},
	{URL: "https://me:hunter1?hunter2-0123@example.com/x.git"},
	// envctl uses what follows the first # as the ref.
	{URL: "https://me:hunter1", Ref: "hunter2-0123@example.com/x.git"},
}

func TestAPasswordThatIsNotEncodedIsRefusedAndNotShown(t *testing.T) {
	for _, g := range unclear {
		var log strings.Builder
		_, err := Create(t.Context(), Config{
			Sandbox: sandbox(t), Workspace: []Source{{Git: &g}},
			Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace}),
		})
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "percent-encode the password (# is %23, / is %2F, % is %25, @ is %40)") {
			t.Errorf("%s with %q: %v, want ErrConfig and what to do", g.URL, g.Ref, err)
			continue
		}
		if said := err.Error() + log.String(); strings.Contains(said, "hunter") || strings.Contains(said, "me:") {
			t.Errorf("%s with %q: the password is in %q", g.URL, g.Ref, said)
		}
	}
}

// Nothing leaks, even past the check.
func TestAPasswordThatIsNotEncodedIsCutOff(t *testing.T) {
	noFilesLeft(t)
	const address = "127.0.0.1:1" // any other free port may belong to another test when it is dialed
	e := &Environment{log: hclog.NewNullLogger()}
	for _, g := range unclear[:3] {
		if _, name := (Source{Git: &g}).describe(); strings.Contains(name, "hunter") || !strings.Contains(name, "example.com/x.git") {
			t.Errorf("%s is named %s", g.URL, name)
		}
		g.URL = strings.Replace(strings.Replace(g.URL, "https", "http", 1), "example.com", address, 1)
		if err := e.place(t.Context(), []Source{{Git: &g}}, nil); !errors.Is(err, ErrGit) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("error %v", err)
		}
	}
}
