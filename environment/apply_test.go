package environment

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// worked returns an environment whose workspace began as a copy of the folder with the files
// before, and now holds after.
func worked(t *testing.T, before, after tree) (env *Environment, from Folder) {
	t.Helper()
	from = Folder{Path: t.TempDir(), Gitignore: true}
	before.write(t, from.Path)
	cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Folder: &from}}}
	cfg.Sandbox.Workspace = t.TempDir()
	env = create(t, cfg)
	entries, err := os.ReadDir(cfg.Sandbox.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(cfg.Sandbox.Workspace, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	after.write(t, cfg.Sandbox.Workspace)
	return env, from
}

func TestApplyTakesOneTreeToTheOther(t *testing.T) {
	for _, cases := range []map[string]treePair{textPatches(), otherPatches()} {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				env, from := worked(t, c.before, c.after)
				changes, err := env.Apply(t.Context(), from)
				if err != nil {
					t.Fatal(err)
				}
				readTree(t, from.Path).mustBe(t, c.after)
				if want, err := env.Changes(t.Context()); err != nil || len(changes) != len(want) {
					t.Errorf("%d changes were applied of %d (%v)", len(changes), len(want), err)
				}
				if again, err := env.Apply(t.Context(), from); err != nil || len(again) > 0 {
					t.Errorf("applied again: %v, %v", again, err)
				}
				readTree(t, from.Path).mustBe(t, c.after)
			})
		}
	}
}

func TestApplyRefusesAFolderThatHasChanged(t *testing.T) {
	before := tree{"changed": "1\n", "deleted": "1\n", "dir/deleted": "1\n", "same": "1\n"}
	after := tree{"changed": "2\n", "new": "1\n", "deep/er/new": "1\n", "same": "1\n"}
	for name, meanwhile := range map[string]tree{
		"another content":         {"changed": "3\n"},
		"another content, longer": {"changed": "1\n2\n"},
		"executable":              {"changed": "x:1\n"},
		"a link":                  {"changed": "-> same"},
		"a deleted one changed":   {"deleted": "2\n"},
		"a new one exists":        {"new": "mine\n"},
		"a folder is a file":      {"deep": "mine\n"},
		"a folder is a link":      {"deep": "-> dir"},
		"a folder for a file":     {"new/x": "mine\n"},
	} {
		t.Run(name, func(t *testing.T) {
			env, from := worked(t, before, after)
			for name := range meanwhile {
				_ = os.RemoveAll(filepath.Join(from.Path, name))
			}
			meanwhile.write(t, from.Path)
			want := readTree(t, from.Path)
			if changes, err := env.Apply(t.Context(), from); !errors.Is(err, ErrConflict) {
				t.Errorf("applied %v: %v", changes, err)
			}
			readTree(t, from.Path).mustBe(t, want)
			if left, _ := filepath.Glob(filepath.Join(from.Path, ".agentenv-*")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
	// A user's folder in place of a file is a conflict, even if the workspace has a folder
	// there.
	env, from := worked(t, tree{"a": "1\n"}, tree{"a/x": "1\n"})
	if err := os.Remove(filepath.Join(from.Path, "a")); err != nil {
		t.Fatal(err)
	}
	tree{"a/mine": "mine\n"}.write(t, from.Path)
	if made, err := env.Apply(t.Context(), from); !errors.Is(err, ErrConflict) {
		t.Errorf("into a folder of the user's own: %v, %v", made, err)
	}
	// The error names each conflicting file and its problem.
	env, from = worked(t, before, after)
	tree{"changed": "3\n", "new/x": "mine\n"}.write(t, from.Path)
	_, err := env.Apply(t.Context(), from)
	if err == nil || !strings.Contains(err.Error(), "changed: conflict with the folder: its content was changed there; ") ||
		!strings.HasSuffix(err.Error(), "new: conflict with the folder: a folder is there now") {
		t.Errorf("several conflicts: %v", err)
	}
	// Files without changes may differ, and files that already have the change stay.
	env, from = worked(t, before, after)
	tree{"same": "mine\n", "mine": "1\n", "new": "1\n"}.write(t, from.Path)
	if err := os.Remove(filepath.Join(from.Path, "deleted")); err != nil {
		t.Fatal(err)
	}
	if made, err := env.Apply(t.Context(), from); err != nil || len(made) != 3 {
		t.Errorf("made %v, %v", made, err)
	}
	readTree(t, from.Path).mustBe(t, tree{"changed": "2\n", "new": "1\n", "deep/er/new": "1\n", "same": "mine\n", "mine": "1\n"})
}

func TestApplyPutsAFileWhereAFolderWithoutFilesIs(t *testing.T) {
	for name, c := range map[string]struct {
		before tree
		folder string
	}{
		"empty":                {tree{"a": "1\n"}, "d"},
		"only folders":         {tree{"a": "1\n"}, "d/x/y"},
		"beside deleted files": {tree{"a": "1\n", "d/deleted": "1\n"}, "d/x"},
	} {
		t.Run(name, func(t *testing.T) {
			after := tree{"a": "1\n", "d": "a file\n"}
			env, from := worked(t, c.before, after)
			if err := os.MkdirAll(filepath.Join(from.Path, c.folder), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := env.Apply(t.Context(), from); err != nil {
				t.Error(err)
			}
			readTree(t, from.Path).mustBe(t, after)
		})
	}
}

func TestApplyNeverLeavesTheFolder(t *testing.T) {
	for name, after := range map[string]tree{
		"an absolute link":            {"l": "-> /etc/passwd"},
		"a link up":                   {"l": "-> ../secret"},
		"a link up from below":        {"a/b/l": "-> ../../../secret"},
		"a link through another link": {"here": "-> .", "l": "-> here/../../secret"},
		"a link to git":               {"hooks": "-> .git/hooks"},
		"a link to git below":         {"sub/hooks": "-> ../.git"},
		"git in other letters":        {"sub/.GIT/hooks/post-checkout": "x:echo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			env, from := worked(t, tree{"a": "1\n"}, tree{"a": "1\n"})
			_ = os.Remove(filepath.Join(env.Primitive().Paths().Workspace, "a"))
			after.write(t, env.Primitive().Paths().Workspace)
			if changes, err := env.Apply(t.Context(), from); !errors.Is(err, primitives.ErrPathEscape) {
				t.Errorf("applied %v: %v", changes, err)
			}
			readTree(t, from.Path).mustBe(t, tree{"a": "1\n"})
		})
	}
	// Apply does not write through a link in the folder either.
	env, from := worked(t, tree{"dir/a": "1\n"}, tree{"dir/a": "2\n"})
	outside := t.TempDir()
	tree{"a": "1\n"}.write(t, outside)
	if err := os.RemoveAll(filepath.Join(from.Path, "dir")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(from.Path, "dir")); err != nil {
		t.Fatal(err)
	}
	if changes, err := env.Apply(t.Context(), from); !errors.Is(err, ErrConflict) {
		t.Errorf("applied %v: %v", changes, err)
	}
	readTree(t, outside).mustBe(t, tree{"a": "1\n"})
}

func TestApplyLeavesOutWhatGitIgnores(t *testing.T) {
	before := tree{".gitignore": "build/\n*.log\n", "a": "1\n", "sub/b": "1\n"}
	after := tree{".gitignore": "build/\n*.log\n", "a": "2\n", "sub/b": "1\n", "build/out": "1\n", "sub/x.log": "1\n", "sub/new": "1\n"}
	want := tree{".gitignore": "build/\n*.log\n", "a": "2\n", "sub/b": "1\n", "build/out": "mine\n", "sub/new": "1\n"}
	for name, repositories := range map[string][]string{"no repository": nil, "a repository": {"."}, "a repository in another": {".", "sub"}} {
		t.Run(name, func(t *testing.T) {
			before := tree{".gitignore": before[".gitignore"], "a": before["a"], "sub/b": before["sub/b"]}
			after, want := after, want
			if len(repositories) > 1 { // it has rules of its own
				before["sub/.gitignore"] = "*.log\n"
				after, want = tree{"sub/.gitignore": "*.log\n"}, tree{"sub/.gitignore": "*.log\n"}
				for name, content := range map[string]string{".gitignore": before[".gitignore"], "a": "2\n", "sub/b": "1\n", "sub/new": "1\n"} {
					after[name], want[name] = content, content
				}
				after["build/out"], after["sub/x.log"], want["build/out"] = "1\n", "1\n", "mine\n"
			}
			env, from := workedIn(t, before, after, repositories)
			tree{"build/out": "mine\n"}.write(t, from.Path)
			if got := changes(t, env); got != "modified a,created sub/new," {
				t.Errorf("changes are %q", got)
			}
			if got := patched(t, env); !slices.Equal(got, []string{"a", "sub/new"}) {
				t.Errorf("the patch is of %q", got)
			}
			changes, err := env.Apply(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, c := range changes {
				paths = append(paths, c.Path)
			}
			if !slices.Equal(paths, []string{"a", "sub/new"}) {
				t.Errorf("applied %q", paths)
			}
			readTree(t, from.Path).mustBe(t, want)
		})
	}
}

// patched returns the files in the patch of the workspace.
func patched(t *testing.T, env *Environment) []string {
	t.Helper()
	var patch strings.Builder
	if err := env.Patch(t.Context(), &patch); err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(patch.String()) {
		if rest, ok := strings.CutPrefix(line, "diff --git a/"); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	return names
}

func TestWhatAFolderLeftOutIsNoChangeForTheNextProgramEither(t *testing.T) {
	box := sandbox(t)
	git, plain := Folder{Path: t.TempDir(), Gitignore: true}, Folder{Path: t.TempDir(), Ignore: []string{"*.o"}}
	tree{".gitignore": "build/\n", "a": "1\n"}.write(t, git.Path)
	tree{"b": "1\n"}.write(t, plain.Path)
	id, _ := keptSandbox(t, Config{Sandbox: box, Workspace: []Source{{Into: "git", Folder: &git}, {Into: "plain", Folder: &plain}}})
	env := attach(t, id, box)
	for _, name := range []string{"build/x", "git/build/x", "git/x.o", "plain/build/x", "plain/x.o"} {
		put(t, env, name, "1\n")
	}
	const want = "created build/x,created git/x.o,created plain/build/x,"
	if got := changes(t, env); got != want {
		t.Errorf("changes are %q, want %q", got, want)
	}
	for what, env := range map[string]*Environment{"copy": forked(t, env, 1)[0], "moved": move(t, env, sandbox(t))} {
		if got := changes(t, env); got != want {
			t.Errorf("%s: changes are %q, want %q", what, got, want)
		}
	}
}

// workedIn is worked for folders that may be git repositories.
func workedIn(t *testing.T, before, after tree, repositories []string) (*Environment, Folder) {
	t.Helper()
	env, from := worked(t, before, after)
	for _, name := range repositories {
		cmd := exec.Command("git", "init", "--quiet", filepath.Join(from.Path, name))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return env, from
}
