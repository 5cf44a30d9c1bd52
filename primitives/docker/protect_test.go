package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// hostGit runs the machine's git in a folder, without the user's configuration.
func hostGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{
		"-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always",
	}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// repository makes a git repository with a submodule, a worktree and the settings of editors.
func repository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	part := filepath.Join(t.TempDir(), "part")
	mkdirs(t, dir, part)
	for _, d := range []string{dir, part} {
		hostGit(t, d, "init", "--quiet")
		writeFile(t, filepath.Join(d, "file"), "1\n")
		hostGit(t, d, "add", ".")
		hostGit(t, d, "commit", "--quiet", "-m", "first")
	}
	hostGit(t, dir, "submodule", "--quiet", "add", part, "part")
	hostGit(t, dir, "worktree", "add", "--quiet", filepath.Join(t.TempDir(), "tree"))
	for _, name := range []string{".vscode/tasks.json", ".claude/settings.json", ".mcp.json", ".envrc"} {
		writeFile(t, filepath.Join(dir, name), "{}")
	}
	hook := filepath.Join(dir, "tools/hooks/post-index-change")
	writeFile(t, hook, "#!/bin/sh\n")
	if err := os.Chmod(hook, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "tools/more.config"), "[a]\n\tb = c\n")
	hostGit(t, dir, "config", "core.hooksPath", "tools/hooks")
	hostGit(t, dir, "config", "include.path", "../tools/more.config")
	hostGit(t, dir, "add", ".")
	hostGit(t, dir, "commit", "--quiet", "-m", "second")
	return dir
}

// tree lists everything in a folder except for git's objects and logs.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "objects" || d.Name() == "logs" {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(dir, name)
		list = append(list, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// withGit returns a configuration of containers that have the machine's git.
func withGit(t *testing.T) docker.Config {
	t.Helper()
	cfg := config(t, testdocker.Debian(t))
	cfg.Mounts = []docker.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true}}
	cfg.Env = map[string]string{
		"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
		"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a",
	}
	return cfg
}

// attacks returns commands by which a container tries to make its machine execute something in a
// repository.
func attacks() []string {
	const evil = `core.fsmonitor 'touch TRACE/fsmonitor #'`
	return []string{
		"git config " + evil,
		"printf '[core]\n\tfsmonitor = touch TRACE/fsmonitor #\n' >>.git/config",
		"rm .git/config", "mv .git/config .git/old", "rm -r .git/hooks", "mv .git/hooks .git/old",
		"mv .git .old", "rm -rf .git/config",
		"mkdir .git2; mv -T .git2 .git; failed=$?; rmdir .git2; exit $failed",
		"cp /bin/true .git/hooks/pre-commit",
		"ln -sf /dev/null .git/config",
		"echo x >>.git/modules/part/config", "mv .git/modules/part .git/modules/old", "mv .git/modules .git/old",
		"echo x >.git/worktrees/tree/commondir", "mv .git/worktrees/tree .git/worktrees/old", "mv .git/worktrees .git/old",
		"echo x >tools/hooks/post-index-change", "echo x >tools/hooks/new", "mv tools/hooks tools/old", "mv tools old",
		"echo x >>tools/more.config",
		"echo x >.vscode/tasks.json", "echo x >.vscode/new", "mv .vscode old", "rm -r .vscode",
		"echo x >.claude/settings.json", "mkdir .claude/hooks", "echo x >.envrc", "rm .envrc", "mv .mcp.json old",
		"mount -o remount,rw .git/config", "umount .git/config", "umount .git",
	}
}

func TestASandboxCannotChangeWhatItsMachineExecutes(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"workspace", "mount", "fork", "attached"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir, trace := repository(t), t.TempDir()
			before := tree(t, dir)
			cfg := withGit(t)
			at := "/workspace"
			if kind == "workspace" || kind == "attached" {
				cfg.Workspace = dir
			} else {
				at = "/m"
				cfg.Mounts = append(cfg.Mounts, docker.Mount{Source: dir, Target: at})
			}
			s := open(t, cfg)
			switch kind {
			case "fork":
				copies, err := s.Fork(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				s = copies[0].(*guest.Sandbox) // Fork's copies have this type
				t.Cleanup(func() {
					_, err := s.Terminate(context.WithoutCancel(t.Context()))
					if err := errors.Join(err, s.Close()); err != nil {
						t.Error(err)
					}
				})
			case "attached":
				again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = again.Close() })
				s = again
			}
			for _, attack := range attacks() {
				if res := script(t, s, "cd "+at+" && "+strings.ReplaceAll(attack, "TRACE", trace)); res.Status.Success() {
					t.Errorf("%s: %s", attack, res.Stdout)
				}
			}
			// The usual work of agents is still possible.
			got := output(t, s, "sh", "-ec", "cd "+at+` && git checkout -q -b work && echo 2 >file && git add file && git commit -q -m third &&
				git fetch -q . main:fetched && git tag -a -m t t && git stash list && git gc -q && git log --format=%s -1`)
			if got != "third\n" {
				t.Errorf("git says %q", got)
			}
			if got := hostGit(t, dir, "status", "--short"); got != "" {
				t.Errorf("status: %q", got)
			}
			if list, err := os.ReadDir(trace); err != nil || len(list) > 0 {
				t.Errorf("the machine has run %v, %v", list, err)
			}
			if _, err := s.Terminate(t.Context()); err != nil {
				t.Error(err)
			}
			made := slices.DeleteFunc(tree(t, dir), func(name string) bool { return slices.Contains(before, name) })
			for _, name := range made {
				if !strings.HasPrefix(name, ".git/refs/") && !slices.Contains([]string{".git/FETCH_HEAD", ".git/packed-refs", ".git/info/refs", ".git/gc.pid"}, name) {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

func TestWritablePathsAreWritable(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	cfg := withGit(t)
	cfg.Workspace, cfg.Writable = dir, []string{".git/hooks", ".vscode"}
	s := open(t, cfg)
	output(t, s, "sh", "-ec", "echo x >.git/hooks/pre-commit; echo x >.vscode/tasks.json; mv .vscode old")
	for _, attack := range []string{"echo x >>.git/config", "mv .git old", "echo x >.envrc"} {
		if res := script(t, s, attack); res.Status.Success() {
			t.Errorf("%s: %+v", attack, res)
		}
	}
	cfg.Writable = []string{"."}
	output(t, open(t, cfg), "sh", "-ec", "echo >>.git/config; echo x >.envrc; mv .git .old; mv .old .git")
}

func TestAWorktreesWayToItsRepositoryStays(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	link := filepath.Join(t.TempDir(), "other")
	hostGit(t, dir, "worktree", "add", "--quiet", link)
	cfg := withGit(t)
	cfg.Workspace, cfg.WorkspacePath = link, link
	cfg.Mounts = append(cfg.Mounts, docker.Mount{Source: filepath.Join(dir, ".git"), Target: filepath.Join(dir, ".git")})
	s := open(t, cfg)
	output(t, s, "sh", "-ec", "echo 2 >file && git commit -q -a -m third")
	for _, attack := range []string{
		"echo gitdir: /x >.git", "mv .git old", "git config a.b c",
		"echo x >>" + dir + "/.git/config", "echo ../../x >" + dir + "/.git/worktrees/other/commondir", "echo x >" + dir + "/.git/hooks/x",
	} {
		if res := script(t, s, attack); res.Status.Success() {
			t.Errorf("%s: %s", attack, res.Stdout)
		}
	}
}

func TestARepositoryBesideItsFilesIsProtected(t *testing.T) {
	t.Parallel()
	for name, gitdir := range map[string]string{"relative": "./.bare", "absolute": "DIR/.bare"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "repo")
			mkdirs(t, dir)
			hostGit(t, dir, "init", "--quiet")
			writeFile(t, filepath.Join(dir, "file"), "1\n")
			if err := os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, ".bare")); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(dir, ".git"), "gitdir: "+strings.ReplaceAll(gitdir, "DIR", dir)+"\n")
			cfg := withGit(t)
			cfg.Workspace, cfg.WorkspacePath = dir, dir
			s := open(t, cfg)
			output(t, s, "sh", "-ec", "git add . && git commit -q -m first")
			for _, attack := range []string{"echo x >>.bare/config", "echo x >.bare/hooks/pre-commit", "mv .bare old", "echo gitdir: old >.git", "rm .git"} {
				if res := script(t, s, attack); res.Status.Success() {
					t.Errorf("%s: %s", attack, res.Stdout)
				}
			}
		})
	}
}

func TestLinksInAMountedFolderAreNotFollowed(t *testing.T) {
	t.Parallel()
	dir, victim := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(victim, "config"), "secret")
	symlink(t, victim, filepath.Join(dir, ".git"))
	symlink(t, victim, filepath.Join(dir, ".vscode"))
	writeFile(t, filepath.Join(dir, ".claude"), "a file")
	cfg := config(t, testdocker.Busybox(t))
	cfg.Workspace = dir
	if res := script(t, open(t, cfg), "cat .git/config .vscode/config"); res.Status.Success() {
		t.Errorf("the sandbox reads %q", res.Stdout)
	}
}
