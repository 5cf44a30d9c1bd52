package environment

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// plainGit runs git as its user would, without the protective arguments and variables. It may
// fail.
func plainGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	_ = cmd.Run() // the caller checks the effects
}

// lacking turns a repository into a partial clone without the object of its .gitignore, so that
// git fetches it from the remote x.
func lacking(t *testing.T, dir string) {
	t.Helper()
	blob := host(t, dir, "rev-parse", ":.gitignore")
	for key, value := range map[string]string{
		"core.repositoryFormatVersion": "1", "extensions.partialClone": "x", "remote.x.promisor": "true",
	} {
		host(t, dir, "config", key, value)
	}
	host(t, dir, "update-index", "--skip-worktree", ".gitignore")
	for _, name := range []string{".gitignore", filepath.Join(".git", "objects", blob[:2], blob[2:])} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// fetching returns a vector that names a program for the fetch of a missing object.
func fetching(config func(program string) map[string]string) vector {
	return vector{live: []string{"ls-files", "--others", "--exclude-standard"}, lacks: true, spoil: func(t *testing.T, dir, program string) {
		t.Helper()
		for key, value := range config(program) {
			host(t, dir, "config", key, value)
		}
		lacking(t, dir)
	}}
}

// vector is a way in which a repository makes git run a program.
type vector struct {
	spoil func(t *testing.T, dir, program string)
	live  []string // the git command that runs it
	lacks bool     // the repository lacks objects
}

// vectors returns the known ways.
func vectors(t *testing.T) map[string]vector {
	t.Helper()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(locked.Close)
	status, lsFiles := []string{"status"}, []string{"ls-files", "--others", "--exclude-standard"}
	config := func(live []string, key string) vector {
		return vector{live: live, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			host(t, dir, "config", key, program)
		}}
	}
	return map[string]vector{
		"remote.uploadpack": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": "/no/such/repository", "remote.x.uploadpack": program}
		}),
		"a remote helper": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": "ext::" + program, "protocol.ext.allow": "always"}
		}),
		"remote.vcs": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": program, "remote.x.vcs": "ext", "protocol.ext.allow": "always"}
		}),
		"core.gitProxy": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": "git://127.0.0.1:1/x", "core.gitProxy": program}
		}),
		"core.sshCommand": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": "ssh://127.0.0.1:1/x", "core.sshCommand": program}
		}),
		"url.insteadOf": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": "https://127.0.0.1:1/x", "url.ext::" + program + " .insteadOf": "https://127.0.0.1:1/", "protocol.ext.allow": "always"}
		}),
		"core.fsmonitor": config(lsFiles, "core.fsmonitor"),
		"a configuration that is included": {live: status, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{".git/more": "[core]\n\tfsmonitor = " + program + "\n"}.write(t, dir)
			host(t, dir, "config", "includeIf.gitdir:"+dir+"/.path", "more")
		}},
		"the configuration of a work tree": {live: status, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			host(t, dir, "config", "extensions.worktreeConfig", "true")
			host(t, dir, "config", "--worktree", "core.fsmonitor", program)
		}},
		"a gitdir elsewhere": {live: status, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			host(t, dir, "config", "core.fsmonitor", program)
			elsewhere := filepath.Join(t.TempDir(), "git")
			if err := os.Rename(filepath.Join(dir, ".git"), elsewhere); err != nil {
				t.Fatal(err)
			}
			tree{".git": "gitdir: " + elsewhere + "\n"}.write(t, dir)
		}},
		"a nested repository": {live: []string{"-C", "nested", "status"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{"nested/b": "1"}.write(t, dir)
			host(t, filepath.Join(dir, "nested"), "init", "-q")
			host(t, filepath.Join(dir, "nested"), "config", "core.fsmonitor", program)
		}},
		"a submodule": {live: []string{"status"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			host(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", repository(t), "sub")
			host(t, dir, "commit", "-q", "-m", "sub")
			host(t, filepath.Join(dir, "sub"), "config", "core.fsmonitor", program)
		}},
		"a filter": {live: []string{"add", "a"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{".gitattributes": "* filter=x\n"}.write(t, dir)
			for _, key := range []string{"clean", "smudge", "process"} {
				host(t, dir, "config", "filter.x."+key, program)
			}
			host(t, dir, "add", "--renormalize", ".gitattributes")
			tree{"a": "2"}.replace(t, dir)
		}},
		"a filter of core.attributesFile": {live: []string{"add", "a"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{".git/attributes": "* filter=x\n"}.write(t, dir)
			host(t, dir, "config", "core.attributesFile", filepath.Join(dir, ".git", "attributes"))
			host(t, dir, "config", "filter.x.clean", program)
			tree{"a": "2"}.replace(t, dir)
		}},
		"a program for differences": {live: []string{"diff"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{".gitattributes": "* diff=x\n", "a": "2"}.replace(t, dir)
			host(t, dir, "config", "diff.x.textconv", program)
			host(t, dir, "config", "diff.external", program)
		}},
		"a hook": {live: []string{"checkout", "-q", "-b", "new"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			for _, name := range []string{"post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"} {
				tree{".git/hooks/" + name: "x:#!/bin/sh\nexec " + program + "\n"}.write(t, dir)
			}
		}},
		"core.hooksPath": {live: []string{"checkout", "-q", "-b", "new"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			tree{"hooks/post-checkout": "x:#!/bin/sh\nexec " + program + "\n"}.write(t, dir)
			host(t, dir, "config", "core.hooksPath", filepath.Join(dir, "hooks"))
		}},
		"an alias": {live: []string{"x"}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			for _, name := range []string{"x", "ls-files", "rev-parse", "fetch", "checkout"} {
				host(t, dir, "config", "alias."+name, "!"+program)
			}
		}},
		"core.alternateRefsCommand": {live: []string{"fetch", "-q", "."}, spoil: func(t *testing.T, dir, program string) {
			t.Helper()
			other := repository(t)
			tree{".git/objects/info/alternates": filepath.Join(other, ".git", "objects") + "\n"}.write(t, dir)
			host(t, dir, "config", "core.alternateRefsCommand", program)
			host(t, dir, "config", "uploadpack.packObjectsHook", program)
		}},
		"credential.helper": fetching(func(program string) map[string]string {
			return map[string]string{"remote.x.url": locked.URL, "credential.helper": "!" + program}
		}),
	}
}

// A folder and a repository of this machine may come from a sandbox, as an unpacked archive or
// through a mount. hostgit runs nothing that they name.
func TestHostGitRunsNothingThatARepositoryNames(t *testing.T) {
	for name, v := range vectors(t) {
		t.Run(name, func(t *testing.T) {
			marker := filepath.Join(t.TempDir(), "ran")
			program := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+marker+"\nexit 1\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			spoiled := func(t *testing.T) string {
				t.Helper()
				dir := folderWith(t, tree{".gitignore": "secret\n", "a": "1", "secret": "1"})
				host(t, dir, "init", "-q", "-b", "main")
				host(t, dir, "add", "-A")
				host(t, dir, "commit", "-q", "-m", "1")
				v.spoil(t, dir, program)
				return dir
			}
			plainGit(t, spoiled(t), v.live...)
			if err := os.Remove(marker); err != nil {
				t.Fatalf("git %v does not run the program: %v", v.live, err)
			}
			noFilesLeft(t)
			for kind, s := range map[string]Source{
				"folder":      {Folder: &Folder{Path: spoiled(t), Gitignore: true}},
				"history":     {Folder: &Folder{Path: spoiled(t), History: true}},
				"git":         {Git: &Git{URL: spoiled(t)}},
				"git history": {Git: &Git{URL: "file://" + spoiled(t), History: true}},
			} {
				env, err := Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{s}})
				switch {
				case err == nil && v.lacks:
					t.Errorf("%s: no error, although objects are missing", kind)
				case v.lacks && (!errors.Is(err, ErrGit) || !strings.Contains(err.Error(), "fetch")):
					t.Errorf("%s: %v, want ErrGit", kind, err)
				case !v.lacks && err != nil:
					t.Errorf("%s: %v", kind, err)
				}
				if err == nil {
					readTree(t, env.Primitive().Paths().Workspace).mustHave(t, "a")
					if err := env.Close(); err != nil {
						t.Error(err)
					}
				}
				if os.Remove(marker) == nil {
					t.Errorf("%s: the program was run", kind)
				}
			}
		})
	}
}

func (tr tree) mustHave(t *testing.T, name string) {
	t.Helper()
	if _, ok := tr[name]; !ok {
		t.Errorf("%q is missing", name)
	}
}

func TestAMissingRefIsNamed(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"init", "--quiet", dir}, {"-C", dir, "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "--quiet", "--allow-empty", "-m", "first"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	_, err := Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{{Git: &Git{URL: dir, Ref: "nosuch"}}}})
	if !errors.Is(err, ErrGit) || !strings.HasSuffix(err.Error(), `there is no branch, tag or commit "nosuch" in the repository`) {
		t.Errorf("error %v", err)
	}
	_, err = Create(t.Context(), Config{Sandbox: sandbox(t), Workspace: []Source{{Git: &Git{URL: filepath.Join(dir, "nosuch")}}}})
	if !errors.Is(err, ErrGit) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "fatal: ") {
		t.Errorf("error %v", err)
	}
}
