package environment

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// placed makes an environment of sources and returns what is in its workspace.
func placed(t *testing.T, sources ...Source) tree {
	t.Helper()
	env := create(t, Config{Workspace: sources})
	changes, err := env.Changes(t.Context())
	if err != nil || len(changes) != 0 {
		t.Errorf("%d changes at the start, %v", len(changes), err)
	}
	return readTree(t, env.Primitive().Paths().Workspace)
}

// refused makes an environment that cannot be made, and returns why not.
func refused(t *testing.T, s Source) *SourceError {
	t.Helper()
	cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Files: []File{{Path: "ok"}}}, s}}
	env, err := Create(t.Context(), cfg)
	if err == nil {
		_ = env.Close()
		t.Fatal("no error")
	}
	var source *SourceError
	if !errors.As(err, &source) || source.Index != 1 {
		t.Fatalf("error %v, want a SourceError of workspace[1]", err)
	}
	left, _ := os.ReadDir(cfg.Sandbox.Local.Root)
	for _, entry := range left {
		if entry.IsDir() {
			t.Errorf("a sandbox is left behind: %s", entry.Name())
		}
	}
	return source
}

func folderWith(t *testing.T, tr tree) string {
	t.Helper()
	dir := t.TempDir()
	tr.write(t, dir)
	return dir
}

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

// repository makes one with two commits: v1 on the tag, v2 on main, and v3 on the
// branch next.
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

// replace writes files that may exist.
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

func TestSourcesArePlacedInOrder(t *testing.T) {
	noFilesLeft(t)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "from-tar", Mode: 0o644, Size: 2},
		{Name: "deep/run", Mode: 0o755, Size: 2},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, "t\n")
	}
	_ = w.Close()
	placed(
		t,
		Source{Folder: &Folder{Path: folderWith(t, tree{"a": "folder", "b/c": "folder", "run": "x:1", "link": "-> b/c", "x.log": "1", "skip/me": "1"}), Ignore: []string{"*.log", "skip"}}},
		Source{Files: []File{{Path: "a", Content: "inline"}, {Path: "new/run", Content: "#!", Mode: 0o755}}},
		Source{Into: "git", Git: &Git{URL: repository(t)}},
		Source{Into: "tar/x", Tar: &Tar{Reader: &archive}},
	).mustBe(t, tree{
		"a": "inline", "b/c": "folder", "run": "x:1", "link": "-> b/c", "new/run": "x:#!",
		"git/version": "v2", "git/run.sh": "x:#!/bin/sh\n", "git/dir/link": "-> ../version", "git/.gitignore": "*.log\n",
		"tar/x/from-tar": "t\n", "tar/x/deep/run": "x:t\n",
	})
}

func TestTarMayBeAFileAndCompressed(t *testing.T) {
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	w := tar.NewWriter(zip)
	if err := w.WriteHeader(&tar.Header{Name: "./a/b", Mode: 0o644, Size: 1}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, "1")
	_, _ = w.Close(), zip.Close()
	name := filepath.Join(t.TempDir(), "x.tgz")
	if err := os.WriteFile(name, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	placed(t, Source{Tar: &Tar{Path: name}}).mustBe(t, tree{"a/b": "1"})

	if err := refused(t, Source{Tar: &Tar{Reader: bytes.NewReader(archive.Bytes()[:archive.Len()/2])}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an archive: %v", err)
	}
	if err := refused(t, Source{Tar: &Tar{Path: name + ".missing"}}); !errors.Is(err, fs.ErrNotExist) || err.Kind != "tar" {
		t.Errorf("no archive: %v", err)
	}
}

func TestWhatLeadsOutOfASourceIsRefused(t *testing.T) {
	archive := func(h tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		return &b
	}
	for name, s := range map[string]Source{
		"an entry above":        {Tar: &Tar{Reader: archive(tar.Header{Name: "../x", Mode: 0o644})}},
		"an absolute entry":     {Tar: &Tar{Reader: archive(tar.Header{Name: "/x", Mode: 0o644})}},
		"a link to the outside": {Folder: &Folder{Path: folderWith(t, tree{"l": "-> ../../x"})}},
		"an absolute link":      {Folder: &Folder{Path: folderWith(t, tree{"l": "-> /etc/passwd"})}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refused(t, s); !errors.Is(err, primitives.ErrPathEscape) {
				t.Errorf("error %v, want primitives.ErrPathEscape", err)
			}
		})
	}
	// A source cannot be placed through a link that an earlier one brought.
	env, err := Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{
		{Folder: &Folder{Path: folderWith(t, tree{"dir/f": "1", "l": "-> dir"})}},
		{Into: "l", Files: []File{{Path: "g", Content: "2"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	readTree(t, env.Primitive().Paths().Workspace).mustBe(t, tree{"dir/f": "1", "dir/g": "2", "l": "-> dir"})
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAFIFOInAFolderIsRefusedUnlessIgnored(t *testing.T) {
	dir := folderWith(t, tree{"a": "1"})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Source{Folder: &Folder{Path: dir}}); !errors.Is(err, primitives.ErrNotRegular) {
		t.Errorf("error %v, want primitives.ErrNotRegular", err)
	}
	placed(t, Source{Folder: &Folder{Path: dir, Ignore: []string{"pipe"}}}).mustBe(t, tree{"a": "1"})
}

func TestAMissingFolderIsNamed(t *testing.T) {
	err := refused(t, Source{Folder: &Folder{Path: "/no/such/folder"}})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "workspace[1] (folder /no/such/folder)") {
		t.Errorf("error %v", err)
	}
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
		// Tracked and gone, tracked although ignored, and a command in the
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // nobody listens
	err = refused(t, Source{Git: &Git{URL: "http://user:hunter2hunter2@" + address + "/x.git"}})
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

func TestPlacingEndsWithItsContext(t *testing.T) {
	noFilesLeft(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err := Create(ctx, Config{Sandbox: sandbox(t), Workspace: []Source{{Tar: &Tar{Reader: readerFunc(func(b []byte) (int, error) {
		cancel(enough)
		return len(b), nil // zeros without end
	})}}}})
	if err == nil {
		t.Error("no error")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
