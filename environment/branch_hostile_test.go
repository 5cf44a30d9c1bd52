package environment

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// object writes an object that git would not make, and returns its ID.
func object(t *testing.T, dir, kind, content string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "hash-object", "-t", kind, "-w", "--literally", "--stdin")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(content)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// raw returns the bytes of an object's ID.
func raw(t *testing.T, id string) string {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(id, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// loose returns the path of a loose object.
func loose(at, id string) string { return filepath.Join(at, ".git", "objects", id[:2], id[2:]) }

// A repository in a sandbox is hostile: what is not a proper commit of it does not come back, and
// the user's repository stays as it was.
func TestAHostileRepositoryInASandbox(t *testing.T) {
	noFilesLeft(t)
	elsewhere := repository(t)
	commit(t, elsewhere, "secret", tree{"secret": "of this machine"})
	secret := host(t, elsewhere, "rev-parse", "HEAD")
	head := func(text string) func(*testing.T, string) {
		return func(t *testing.T, at string) { t.Helper(); tree{".git/HEAD": text}.replace(t, at) }
	}
	move := func(name, to string) func(*testing.T, string) {
		return func(t *testing.T, at string) {
			t.Helper()
			if err := os.Rename(filepath.Join(at, name), filepath.Join(at, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, at string)
		want  error
		says  string
	}{
		"HEAD leads out of refs":      {head("ref: refs/heads/../../../../../etc/passwd\n"), ErrGit, "no branch that git would make"},
		"HEAD is an absolute path":    {head("ref: /etc/passwd\n"), ErrGit, "no branch"},
		"HEAD has a strange name":     {head("ref: refs/heads/a b\x1b[2J\n"), ErrGit, `\x1b`},
		"HEAD is no ref":              {head("-c core.fsmonitor=x\n"), ErrGit, "names no commit"},
		"HEAD leads to itself":        {head("ref: refs/heads/main\n"), ErrGit, "leads nowhere"},
		"HEAD names a missing commit": {head(strings.Repeat("1", 40) + "\n"), ErrGit, "damaged"},
		"HEAD is too long":            {head(strings.Repeat("1", 1<<20)), primitives.ErrLimit, ""},
		"HEAD is of the host": {func(t *testing.T, at string) {
			t.Helper()
			tree{".git/objects/info/alternates": filepath.Join(elsewhere, ".git", "objects") + "\n"}.write(t, at)
			head(secret+"\n")(t, at)
		}, ErrGit, "damaged"},
		"objects are links to the host": {func(t *testing.T, at string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(loose(at, secret)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(loose(elsewhere, secret), loose(at, secret)); err != nil {
				t.Fatal(err)
			}
			head(secret+"\n")(t, at)
		}, ErrGit, "damaged"},
		".git is a file": {func(t *testing.T, at string) {
			t.Helper()
			move(".git", "moved")(t, at)
			tree{".git": "gitdir: " + filepath.Join(elsewhere, ".git") + "\n"}.write(t, at)
		}, primitives.ErrNotDirectory, ".git"},
		".git is a link": {func(t *testing.T, at string) {
			t.Helper()
			move(".git", "moved")(t, at)
			tree{".git": "-> " + filepath.Join(elsewhere, ".git")}.write(t, at)
		}, primitives.ErrNotDirectory, ".git"},
		".git/objects is a link": {func(t *testing.T, at string) {
			t.Helper()
			move(".git/objects", "moved")(t, at)
			tree{".git/objects": "-> " + filepath.Join(elsewhere, ".git", "objects")}.write(t, at)
		}, primitives.ErrNotDirectory, "objects"},
		"a commit without an author": {func(t *testing.T, at string) {
			t.Helper()
			head(object(t, at, "commit", "tree "+host(t, at, "rev-parse", "HEAD^{tree}")+"\ncommitter x\n\nx\n")+"\n")(t, at)
		}, ErrGit, "fsck"},
		"a tree with .git": {func(t *testing.T, at string) {
			t.Helper()
			blob := raw(t, object(t, at, "blob", "[core]\n\tfsmonitor = x\n"))
			inner := raw(t, object(t, at, "tree", "100644 config\x00"+blob))
			head(host(t, at, "commit-tree", "-m", "x", object(t, at, "tree", "40000 .git\x00"+inner))+"\n")(t, at)
		}, ErrGit, ""},
		"a tree that leads out": {func(t *testing.T, at string) {
			t.Helper()
			blob := raw(t, object(t, at, "blob", "x"))
			inner := raw(t, object(t, at, "tree", "100644 passwd\x00"+blob))
			head(host(t, at, "commit-tree", "-m", "x", object(t, at, "tree", "40000 ..\x00"+inner))+"\n")(t, at)
		}, ErrGit, ""},
		"a URL of .gitmodules that is an option": {func(t *testing.T, at string) {
			t.Helper()
			commit(t, at, "x", tree{".gitmodules": "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n"})
		}, ErrGit, "fsck"},
		"a damaged object": {func(t *testing.T, at string) {
			t.Helper()
			commit(t, at, "x", tree{"x": "damaged"})
			tree{strings.TrimPrefix(loose("", host(t, at, "rev-parse", "HEAD:x")), "/"): "garbage"}.replace(t, at)
		}, ErrGit, ""},
		"an object with other content": {func(t *testing.T, at string) {
			t.Helper()
			commit(t, at, "x", tree{"x": "the content"})
			other := object(t, at, "blob", "other content")
			data, err := os.ReadFile(loose(at, other))
			if err != nil {
				t.Fatal(err)
			}
			tree{strings.TrimPrefix(loose("", host(t, at, "rev-parse", "HEAD:x")), "/"): string(data)}.replace(t, at)
		}, ErrGit, ""},
		"an object that claims to be huge": {func(t *testing.T, at string) {
			t.Helper()
			commit(t, at, "x", tree{"x": "huge"})
			var data bytes.Buffer
			w := zlib.NewWriter(&data)
			_, err := w.Write([]byte("tree 1099511627776\x00"))
			if err = errors.Join(err, w.Close()); err != nil {
				t.Fatal(err)
			}
			tree{strings.TrimPrefix(loose("", host(t, at, "rev-parse", "HEAD^{tree}")), "/"): data.String()}.replace(t, at)
		}, ErrGit, ""},
		"a damaged pack": {func(t *testing.T, at string) {
			t.Helper()
			tree{".git/objects/pack/pack-" + strings.Repeat("0", 40) + ".pack": "PACK\x00\x00\x00\x02\x7f\xff\xff\xff"}.write(t, at)
		}, ErrGit, "index-pack"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t)
			before := host(t, dir, "for-each-ref")
			env := inHistory(t, sandbox(t), dir)
			at := env.Primitive().Paths().Workspace
			commit(t, at, "good", tree{"good": "1"})
			if name == "HEAD leads to itself" {
				tree{".git/refs/heads/main": "ref: refs/heads/main\n"}.replace(t, at)
			}
			c.spoil(t, at)
			b, err := env.FetchBranch(t.Context(), dir, "work")
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v, error %v, want %v with %q", b, err, c.want, c.says)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b") {
				t.Errorf("the error has control characters: %q", err)
			}
			if after := host(t, dir, "for-each-ref"); after != before {
				t.Errorf("the repository has\n%s\nbefore\n%s", after, before)
			}
			host(t, dir, "fsck", "--full", "--strict")
		})
	}
}

// Objects and changed files beyond the limit do not come back.
func TestABranchIsLimited(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	env := inHistory(t, sandbox(t), dir)
	limit := archive.Limit{Bytes: 64 << 10, Advice: "advice"}
	writeIn(t, env, "large", strings.Repeat("x", 100<<10))
	if _, err := env.fetchBranch(t.Context(), dir, "work", limit); !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "advice") {
		t.Errorf("of a large file: %v, want primitives.ErrLimit", err)
	}
	var noise bytes.Buffer
	for i := range 30_000 {
		fmt.Fprintf(&noise, "%x", uint32(i)*2654435761) //nolint:gosec // it is to be random
	}
	at := env.Primitive().Paths().Workspace
	commit(t, at, "large", tree{"large": "", "noise": noise.String()})
	if _, err := env.fetchBranch(t.Context(), dir, "work", limit); !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "advice") {
		t.Errorf("of a large object: %v, want primitives.ErrLimit", err)
	}
	host(t, at, "gc", "-q")
	if _, err := env.fetchBranch(t.Context(), dir, "work", limit); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("of a large pack: %v, want primitives.ErrLimit", err)
	}
}

// A pack that the agent has marked as kept is read like any other if it is needed.
func TestAKeptPackOfTheAgentIsRead(t *testing.T) {
	noFilesLeft(t)
	dir := repository(t)
	env := inHistory(t, sandbox(t), dir)
	at := env.Primitive().Paths().Workspace
	commit(t, at, "one", tree{"one": "1"})
	host(t, at, "repack", "-q", "-d")
	packs, err := filepath.Glob(filepath.Join(at, ".git", "objects", "pack", "*.pack"))
	if err != nil || len(packs) != 2 {
		t.Fatalf("there are the packs %v, want one of the history and one of the agent", packs)
	}
	for _, pack := range packs {
		if err := os.WriteFile(strings.TrimSuffix(pack, "pack")+"keep", nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fetched(t, env, dir, "work", 1)
}

// hooked gives a repository all hooks that an update of refs or files might run.
func hooked(t *testing.T, dir, program string) {
	t.Helper()
	folder := host(t, dir, "rev-parse", "--absolute-git-dir")
	for _, hook := range []string{"post-merge", "post-update", "reference-transaction", "post-rewrite", "update", "pre-receive", "post-checkout"} {
		tree{"hooks/" + hook: "x:#!/bin/sh\nexec " + program + "\n"}.replace(t, folder)
	}
}

// Nothing that the sandbox's repository or the user's names is run: no hook, no program.
func TestABranchRunsNothingThatARepositoryNames(t *testing.T) {
	for name, v := range vectors(t) {
		if v.lacks {
			continue // git fetches nothing for a branch
		}
		t.Run(name, func(t *testing.T) {
			marker := filepath.Join(t.TempDir(), "ran")
			program := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+marker+"\nexit 1\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			noFilesLeft(t)
			dir := folderWith(t, tree{".gitignore": "secret\n", "a": "1"})
			host(t, dir, "init", "-q", "-b", "main")
			host(t, dir, "add", "-A")
			host(t, dir, "commit", "-q", "-m", "1")
			env := inHistory(t, sandbox(t), dir)
			at := env.Primitive().Paths().Workspace
			commit(t, at, "one", tree{"one": "1"})
			tree{"a": "2", "rest": "1"}.replace(t, at)
			v.spoil(t, at, program)
			hooked(t, at, program)
			_ = os.Remove(marker) // spoil may run it
			var want error
			if info, err := os.Lstat(filepath.Join(at, ".git")); err != nil || !info.IsDir() {
				want = primitives.ErrNotDirectory
			}
			if _, err := env.FetchBranch(t.Context(), dir, "work"); !errors.Is(err, want) {
				t.Errorf("from a spoiled sandbox: %v, want %v", err, want)
			}
			if os.Remove(marker) == nil {
				t.Error("a program that the sandbox names was run")
			}
			v.spoil(t, dir, program)
			hooked(t, dir, program)
			host(t, dir, "config", "url.ext::"+program+" .insteadOf", "/")
			host(t, dir, "config", "protocol.ext.allow", "always")
			_ = os.Remove(marker)
			if _, err := env.FetchBranch(t.Context(), dir, "work-2"); err == nil || want == nil && !strings.Contains(err.Error(), "not allowed") {
				t.Errorf("into a repository that leads elsewhere: %v", err)
			}
			host(t, dir, "config", "--unset", "url.ext::"+program+" .insteadOf")
			if _, err := env.FetchBranch(t.Context(), dir, "work-2"); !errors.Is(err, want) {
				t.Errorf("into a spoiled repository: %v, want %v", err, want)
			}
			if os.Remove(marker) == nil {
				t.Error("a program that the user's repository names was run")
			}
		})
	}
}
