package environment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// brought returns the workspace of a local sandbox that has a copy of a folder with its history.
func brought(t *testing.T, dir string, more ...func(*Folder)) string {
	t.Helper()
	f := &Folder{Path: dir, Gitignore: true, History: true}
	for _, change := range more {
		change(f)
	}
	return create(t, Config{Workspace: []Source{{Folder: f}}}).Primitive().Paths().Workspace
}

// looks are what git says about a repository and its work tree.
var looks = [][]string{
	{"status", "--porcelain=v1", "--branch"},
	{"log", "--all", "--format=%H %an %ae %d %s", "--decorate=full"},
	{"diff", "--stat"},
	{"diff", "--cached", "-M", "--stat"},
	{"ls-files", "-s"},
	{"for-each-ref", "--format=%(objectname) %(refname) %(symref)", "refs/heads", "refs/remotes", "refs/tags"},
	{"rev-parse", "--symbolic-full-name", "HEAD"},
	{"fsck", "--full", "--no-dangling"},
}

// mustLookLike fails the test unless git says the same in both folders.
func mustLookLike(t *testing.T, got, want string, looks [][]string) {
	t.Helper()
	for _, args := range looks {
		if is, was := host(t, got, args...), host(t, want, args...); is != was {
			t.Errorf("git %s says in the sandbox\n%s\nand in the folder\n%s", strings.Join(args, " "), is, was)
		}
	}
}

// Git in a sandbox says what it says in the folder, whatever is staged.
func TestGitWorksInACopyAsInTheFolder(t *testing.T) {
	noFilesLeft(t)
	for name, change := range map[string]func(t *testing.T, dir string){
		"clean": func(*testing.T, string) {},
		"changed in all ways": func(t *testing.T, dir string) {
			t.Helper()
			tree{"version": "staged", "new": "1", "both": "1", "empty": "", "announced": "1"}.replace(t, dir)
			host(t, dir, "add", "version", "new", "both", "empty")
			host(t, dir, "add", "-N", "announced")
			host(t, dir, "mv", "run.sh", "moved.sh")
			host(t, dir, "rm", "-q", "dir/link")
			tree{"both": "2", "version": "and not staged", "untracked": "1", "-dash": "1", "new\nline": "1"}.replace(t, dir)
		},
		"nothing staged": func(t *testing.T, dir string) {
			t.Helper()
			tree{"version": "v4"}.replace(t, dir)
			if err := os.Remove(filepath.Join(dir, "run.sh")); err != nil {
				t.Fatal(err)
			}
		},
		"detached": func(t *testing.T, dir string) { t.Helper(); host(t, dir, "checkout", "-q", "--detach", "next") },
		"marked": func(t *testing.T, dir string) {
			t.Helper()
			host(t, dir, "update-index", "--skip-worktree", "run.sh")
			host(t, dir, "update-index", "--assume-unchanged", "version")
			tree{"run.sh": "other", "version": "other"}.replace(t, dir)
		},
		"a branch that follows another": func(t *testing.T, dir string) {
			t.Helper()
			host(t, dir, "remote", "add", "origin", "https://me:hunter2hunter2@example.com/x.git?private_token=hunter2")
			host(t, dir, "update-ref", "refs/remotes/origin/main", "v1")
			host(t, dir, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
			host(t, dir, "branch", "-q", "--set-upstream-to=origin/main")
		},
		"line ends of another system": func(t *testing.T, dir string) {
			t.Helper()
			host(t, dir, "config", "core.autocrlf", "true")
			tree{"version": "v2\r\n"}.replace(t, dir)
			host(t, dir, "add", "version")
		},
		"files that only .git leaves out": func(t *testing.T, dir string) {
			t.Helper()
			tree{".git/info/exclude": "left-out\n"}.write(t, dir)
			tree{"left-out": "1"}.write(t, dir)
		},
		"a filter that the sandbox does not have": func(t *testing.T, dir string) {
			t.Helper()
			host(t, dir, "config", "filter.large.clean", "sed s/.*/pointer/")
			tree{".gitattributes": "*.bin filter=large\n", "a.bin": "the content\n"}.write(t, dir)
			host(t, dir, "add", "-A")
			host(t, dir, "commit", "-q", "-m", "large")
		},
		"a submodule": func(t *testing.T, dir string) {
			t.Helper()
			host(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", repository(t), "sub")
			host(t, dir, "commit", "-q", "-m", "sub")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t)
			change(t, dir)
			before := host(t, dir, "status", "--porcelain=v2")
			mustLookLike(t, brought(t, dir), dir, looks)
			if after := host(t, dir, "status", "--porcelain=v2"); after != before {
				t.Errorf("the folder was changed: %s, before %s", after, before)
			}
		})
	}
	t.Run("without a commit", func(t *testing.T) {
		dir := folderWith(t, tree{"a": "1", "b": "1", "empty": "", "announced": ""})
		host(t, dir, "init", "-q", "-b", "trunk")
		host(t, dir, "add", "a", "empty")
		host(t, dir, "add", "-N", "announced")
		mustLookLike(t, brought(t, dir), dir, [][]string{{"status", "--porcelain=v1", "--branch"}, {"ls-files", "-s"}})
	})
}

// Repositories of unusual kinds.
func TestRepositoriesOfAllKindsAreBrought(t *testing.T) {
	noFilesLeft(t)
	for name, begin := range map[string]func(t *testing.T) string{
		"a work tree": func(t *testing.T) string {
			t.Helper()
			dir := filepath.Join(t.TempDir(), "tree")
			host(t, repository(t), "worktree", "add", "-q", "-b", "other", dir)
			tree{"new": "1"}.write(t, dir)
			host(t, dir, "add", "new")
			return dir
		},
		"a shallow clone": func(t *testing.T) string {
			t.Helper()
			dir := filepath.Join(t.TempDir(), "clone")
			host(t, t.TempDir(), "clone", "-q", "--depth=1", "file://"+repository(t), dir)
			return dir
		},
		"one that borrows objects": func(t *testing.T) string {
			t.Helper()
			dir := filepath.Join(t.TempDir(), `with "quotes": and`)
			host(t, t.TempDir(), "clone", "-q", "--shared", repository(t), dir)
			return dir
		},
		"with SHA-256": func(t *testing.T) string {
			t.Helper()
			dir := folderWith(t, tree{"a": "1"})
			host(t, dir, "init", "-q", "-b", "main", "--object-format=sha256")
			host(t, dir, "add", "a")
			host(t, dir, "commit", "-q", "-m", "one")
			return dir
		},
		"a sparse checkout": func(t *testing.T) string {
			t.Helper()
			dir := repository(t)
			host(t, dir, "sparse-checkout", "set", "--no-cone", "/version")
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := begin(t)
			mustLookLike(t, brought(t, dir), dir, looks)
		})
	}
}

// What a sandbox must not see stays here, and nothing that the repository names is run.
func TestOnlyTheHistoryIsBrought(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	tree{"version": "a secret that was stashed"}.replace(t, dir)
	host(t, dir, "stash")
	tree{"version": "a secret that was amended"}.replace(t, dir)
	host(t, dir, "commit", "-q", "-a", "-m", "amended")
	secret := host(t, dir, "rev-parse", "HEAD")
	host(t, dir, "reset", "-q", "--hard", "HEAD~1")
	marker := filepath.Join(t.TempDir(), "ran")
	tree{".git/hooks/post-checkout": "x:#!/bin/sh\ntouch " + marker, ".git/more": "[user]\n\tname = of an include\n"}.write(t, dir)
	for key, value := range map[string]string{
		"http.https://example.com.extraHeader": "Authorization: hunter2", "credential.helper": "!touch " + marker,
		"core.fsmonitor": "touch " + marker, "alias.st": "!touch " + marker, "include.path": "more",
		"remote.origin.url": "https://token:hunter2@example.com/x.git", "remote.here.url": "/home/hunter2", "remote.here.uploadpack": "touch " + marker,
		"url.https://hunter2@example.com/.insteadOf": "https://example.com/",
	} {
		host(t, dir, "config", key, value)
	}
	copied := brought(t, dir)
	config, err := os.ReadFile(filepath.Join(copied, ".git", "config"))
	if err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"hunter2", "touch", "[include", "alias", "helper"} {
		if strings.Contains(string(config), never) {
			t.Errorf("the configuration in the sandbox has %q:\n%s", never, config)
		}
	}
	if got := host(t, copied, "remote", "get-url", "origin"); got != "https://example.com/x.git" {
		t.Errorf("the remote is %s", got)
	}
	for _, name := range []string{"hooks", "logs", "refs/stash", "objects/info/alternates", "FETCH_HEAD", "ORIG_HEAD"} {
		if _, err := os.Lstat(filepath.Join(copied, ".git", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the sandbox has .git/%s: %v", name, err)
		}
	}
	if got := host(t, copied, "cat-file", "--batch-all-objects", "--batch-check"); strings.Contains(got, secret) {
		t.Error("the sandbox has a commit that nothing refers to")
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("a command of the repository was run")
	}
}

func TestTheUserIsTheAuthorInASandbox(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	author := func(dir string) string {
		return host(t, dir, "config", "--get", "user.name") + " " + host(t, dir, "config", "--get", "user.email")
	}
	t.Setenv("HOME", t.TempDir())
	if got := author(brought(t, dir)); got != "agentenv agentenv@localhost" {
		t.Errorf("without a name: %s", got)
	}
	tree{".gitconfig": "[user]\n\tname = Ada \\\"the first\\\"\n\temail = ada@example.com\n"}.write(t, os.Getenv("HOME"))
	for name, got := range map[string]string{
		"a folder": author(brought(t, dir)),
		"a clone":  author(create(t, Config{Workspace: []Source{{Git: &Git{URL: dir, History: true}}}}).Primitive().Paths().Workspace),
	} {
		if got != `Ada "the first" ada@example.com` {
			t.Errorf("%s: %s", name, got)
		}
	}
	host(t, dir, "config", "user.email", "work@example.com")
	if got := author(brought(t, dir)); got != `Ada "the first" work@example.com` {
		t.Errorf("with an address of the repository: %s", got)
	}
}

func TestAMergeThatHasNotEndedIsNotBrought(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	host(t, dir, "checkout", "-q", "-b", "conflict", "v1")
	tree{"version": "other"}.replace(t, dir)
	host(t, dir, "commit", "-q", "-a", "-m", "other")
	plainGit(t, dir, "merge", "main")
	err := refused(t, Source{Folder: &Folder{Path: dir, Gitignore: true, History: true}})
	if !errors.Is(err, ErrMerging) || !strings.Contains(err.Error(), "without history") {
		t.Errorf("error %v, want ErrMerging with advice", err)
	}
	placed(t, Source{Folder: &Folder{Path: dir, Gitignore: true}})
}

func TestAPartialCloneIsNotBrought(t *testing.T) {
	noFilesLeft(t)
	from := repository(t)
	host(t, from, "config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "partial")
	host(t, t.TempDir(), "clone", "-q", "--filter=blob:none", "file://"+from, dir)
	err := refused(t, Source{Folder: &Folder{Path: dir, Gitignore: true, History: true}})
	if !errors.Is(err, ErrGit) || !strings.Contains(err.Error(), "without history") {
		t.Errorf("error %v, want ErrGit with advice", err)
	}
}

// A folder that is not the top of a repository is copied as without History.
func TestAFolderWithoutARepositoryHasNoHistory(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	for name, folder := range map[string]string{"below the top": filepath.Join(dir, "dir"), "no repository": folderWith(t, tree{"a": "1"})} {
		for _, gitignore := range []bool{true, false} {
			copied := brought(t, folder, func(f *Folder) { f.Gitignore = gitignore })
			if _, err := os.Lstat(filepath.Join(copied, ".git")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: there is a .git: %v", name, err)
			}
		}
	}
}

// Without Gitignore all files are copied, but .git still is a new one.
func TestHistoryReplacesTheRepository(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	host(t, dir, "config", "alias.st", "status")
	tree{"x.log": "1", "left/a": "1"}.write(t, dir)
	host(t, dir, "add", "-f", "left")
	host(t, dir, "commit", "-q", "-m", "left")
	copied := brought(t, dir, func(f *Folder) { f.Gitignore, f.Ignore = false, []string{"left/**"} })
	if _, err := os.Lstat(filepath.Join(copied, "x.log")); err != nil {
		t.Error(err)
	}
	if got := host(t, copied, "status", "--porcelain"); got != "" {
		t.Errorf("files that were left out count as deleted: %s", got)
	}
	if config, err := os.ReadFile(filepath.Join(copied, ".git", "config")); err != nil || strings.Contains(string(config), "alias") {
		t.Errorf("the configuration was copied: %s, %v", config, err)
	}
}
