package environment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A .gitignore that the agent writes counts, as it does for git add.
func TestNewFilesThatTheWorkspaceIgnoresAreNoChanges(t *testing.T) {
	after := tree{
		"package.json": "{}\n", ".gitignore": "node_modules/\n/dist/\n*.o\n!keep.o\n\\#x\n", "src/a.c": "1\n", "keep.o": "1\n", "a.o": "1\n", "src/b.o": "1\n",
		"dist/app": "\x00", "sub/dist/app": "1\n", "node_modules/.gitignore": "!*\n", "sub/.gitignore": "*\n!.gitignore\n!x\n", "sub/x": "1\n", "sub/y": "1\n",
		"a/.gitignore/b": "1\n", "l/.gitignore": "-> ../.gitignore", "#x": "1\n", "tracked.o": "2\n", "new\nline.o": "1\n", "bad\xff.o": "1\n",
	}
	for i := range 50 {
		after[fmt.Sprintf("node_modules/x/f%d.js", i)] = "1\n"
	}
	env, from := worked(t, tree{"package.json": "{}\n", "tracked.o": "1\n"}, after)
	// What git itself takes.
	git := t.TempDir()
	after.write(t, git)
	var want []string
	for _, args := range [][]string{{"init", "--quiet"}, {"ls-files", "-z", "--others", "--exclude-standard"}} {
		out, err := exec.Command("git", append([]string{"-C", git}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		want = strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	}
	want = slices.DeleteFunc(append(want, "tracked.o"), func(name string) bool { return name == "package.json" })
	slices.Sort(want)
	changes, err := env.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.Path)
	}
	left := len(after) - 1 - len(want)
	if !slices.Equal(got, want) || env.Ignored() != left || left < 50 {
		t.Errorf("changes are %q, want %q; %d are ignored, want %d", got, want, env.Ignored(), left)
	}
	if made, err := env.Apply(t.Context(), from); err != nil || len(made) != len(want) || env.Ignored() != left {
		t.Errorf("applied %d, ignored %d, %v", len(made), env.Ignored(), err)
	}
	if names := patched(t, env); len(names) == 0 || env.Ignored() != left {
		t.Errorf("the patch has %q, ignored %d", names, env.Ignored())
	}
}

// The rules of the folder and those of the workspace count together: what the agent ignores no
// more may be in the folder.
func TestBothTheFolderAndTheWorkspaceIgnore(t *testing.T) {
	env, from := worked(t, tree{".gitignore": "build/\n", "sub/.gitignore": "*.o\n"}, tree{"dist/x": "1\n", ".gitignore": "dist/\n", "build/x": "1\n", "sub/x.o": "1\n", "sub/y": "1\n"})
	const want = "modified .gitignore,deleted sub/.gitignore,created sub/y,"
	if got := changes(t, env); got != want || env.Ignored() != 3 {
		t.Errorf("changes are %q, %d ignored", got, env.Ignored())
	}
	// Without the folder there are only the rules of the workspace.
	if err := os.RemoveAll(from.Path); err != nil {
		t.Fatal(err)
	}
	if got := changes(t, env); got != "modified .gitignore,created build/x,deleted sub/.gitignore,created sub/x.o,created sub/y," || env.Ignored() != 1 {
		t.Errorf("changes are %q, %d ignored", got, env.Ignored())
	}
}

func TestWhereTheIgnoreFilesOfTheWorkspaceCount(t *testing.T) {
	git, plain := Folder{Path: t.TempDir(), Gitignore: true}, Folder{Path: t.TempDir(), Ignore: []string{"*.tmp"}}
	nested := filepath.Join(git.Path, "nested")
	if out, err := exec.Command("git", "init", "--quiet", nested).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, dir := range []string{git.Path, plain.Path, nested} {
		tree{"a": "1\n"}.write(t, dir)
	}
	env := create(t, Config{Sandbox: sandbox(t), Workspace: []Source{{Into: "git", Folder: &git}, {Into: "plain", Folder: &plain}}})
	for _, name := range []string{"x.o", "git/x.o", "git/nested/x.o", "git/nested/y.p", "plain/x.o", "plain/x.tmp", "other/x.o"} {
		put(t, env, name, "1\n")
	}
	for _, dir := range []string{"", "git/", "plain/"} {
		put(t, env, dir+".gitignore", "*.o\n")
	}
	put(t, env, "git/nested/.gitignore", "*.p\n")
	const want = "created .gitignore,created git/.gitignore,created git/nested/.gitignore,created git/nested/x.o,created plain/.gitignore,created plain/x.o,"
	if got := changes(t, env); got != want || env.Ignored() != 4 {
		t.Errorf("changes are %q, %d ignored", got, env.Ignored())
	}
}

// A server without git and without folders reports all changes.
func TestChangesNeedNoGit(t *testing.T) {
	env := create(t, Config{Sandbox: sandbox(t), Workspace: []Source{{Folder: &Folder{Path: t.TempDir()}, Into: "plain"}}})
	put(t, env, ".gitignore", "*.o\n")
	put(t, env, "x.o", "1\n")
	put(t, env, "plain/x", "1\n")
	t.Setenv("PATH", t.TempDir())
	if got := changes(t, env); got != "created .gitignore,created plain/x,created x.o," {
		t.Errorf("changes are %q", got)
	}
}

// filtered makes a repository with a filter as Git LFS has it, whose files are in their long form.
func filtered(t *testing.T, files tree) string {
	t.Helper()
	dir, store := t.TempDir(), t.TempDir()
	clean := `f=$(mktemp ` + store + `/XXXXXX); cat > $f; h=$(sha256sum < $f | cut -c1-64); mv $f ` + store + `/$h; printf 'oid %s\n' $h`
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"config", "filter.lfs.clean", clean},
		{"config", "filter.lfs.smudge", `read -r _ h; cat ` + store + `/$h`},
		{"config", "filter.lfs.required", "true"},
		{"config", "user.name", "a"},
		{"config", "user.email", "a@example.com"},
	} {
		git(t, dir, args...)
	}
	files.write(t, dir)
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "-m", "1")
	return dir
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
}

func TestChangesNameTheFilesThatGitConverts(t *testing.T) {
	before := tree{
		".gitattributes": "*.bin filter=lfs -text\n*.csv filter=lfs\n*.none filter=absent\nutf16 working-tree-encoding=UTF-16\n*.id ident\nnot.bin !filter\n",
		"a.bin":          "\x00\x01\n", "d.csv": "a,b\n", "c.c": "1\n", "x.none": "1\n", "utf16": "\xfe\xff\x00a\x00\n", "k.id": "$Id$\n", "not.bin": "1\n", "same.bin": "1\n",
	}
	after := tree{
		".gitattributes": before[".gitattributes"],
		"a.bin":          "\x00\x02\n", "d.csv": "a,b\n1,2\n", "c.c": "2\n", "x.none": "2\n", "utf16": "\xfe\xff\x00b\x00\n", "k.id": "$Id$\n2\n", "not.bin": "2\n", "same.bin": "1\n", "sub/new.bin": "1\n",
	}
	from := Folder{Path: filtered(t, before), Gitignore: true}
	cfg := Config{Sandbox: sandbox(t), Workspace: []Source{{Into: "in", Folder: &from}}}
	cfg.Sandbox.Workspace = t.TempDir()
	env := create(t, cfg)
	after.write(t, filepath.Join(cfg.Sandbox.Workspace, "in"))
	list, err := env.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		got = append(got, strings.TrimPrefix(c.Path, "in/")+" "+c.Filter)
	}
	want := []string{"a.bin lfs", "c.c ", "d.csv lfs", "k.id ident", "not.bin ", "sub/new.bin lfs", "utf16 working-tree-encoding=UTF-16", "x.none "}
	if !slices.Equal(got, want) {
		t.Errorf("filters are %q, want %q", got, want)
	}
}
