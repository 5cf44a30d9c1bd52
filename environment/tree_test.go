package environment

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// tree maps paths to files: "-> target" is a link, and "x:" before the content marks an
// executable file.
type tree map[string]string

func (tr tree) write(t *testing.T, dir string) {
	t.Helper()
	for name, content := range tr {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, full)
		} else if script, ok := strings.CutPrefix(content, "x:"); ok {
			err = os.WriteFile(full, []byte(script), 0o755)
		} else {
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readTree reads what write writes, without files under .git.
func readTree(t *testing.T, dir string) tree {
	t.Helper()
	tr := make(tree)
	err := filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" && d.IsDir() {
			return fs.SkipDir
		}
		name, _ := filepath.Rel(dir, full)
		switch {
		case d.IsDir():
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(full)
			tr[name] = "-> " + target
			return err
		}
		content, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if tr[name] = string(content); err == nil && info.Mode()&0o100 != 0 {
			tr[name] = "x:" + tr[name]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr tree) mustBe(t *testing.T, want tree) {
	t.Helper()
	for name, content := range want {
		if got, ok := tr[name]; !ok {
			t.Errorf("%q is missing", name)
		} else if got != content {
			t.Errorf("%q holds %s, want %s", name, short(got), short(content))
		}
	}
	for name := range tr {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there", name)
		}
	}
}

func short(s string) string { return fmt.Sprintf("%d bytes %.80q", len(s), s) }

// replaceInPlace writes files, which exist.
func (tr tree) replaceInPlace(t *testing.T, dir string) {
	t.Helper()
	for name, content := range tr {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// comparedTypes returns the places in a Go file that compare a value with the name of a sandbox
// type.
func comparedTypes(t *testing.T, name string, source any) (places []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	look := func(compared ...ast.Expr) {
		for _, e := range compared {
			lit, ok := e.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				continue
			}
			if word, err := strconv.Unquote(lit.Value); err == nil && slices.Contains(primitives.Types(), word) {
				places = append(places, files.Position(lit.Pos()).String())
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				look(n.X, n.Y)
			}
		case *ast.CaseClause:
			look(n.List...)
		}
		return true
	})
	return places
}

// TestNoLayerComparesATypesName: differences between sandbox types are capabilities. Only the
// file that lists the types, their own packages and one flag of envctl for ssh know the names.
func TestNoLayerComparesATypesName(t *testing.T) {
	for code, want := range map[string]int{
		`s.Type == "local"`: 1, `"ssh" != s.Type`: 1, `s.Type == "other"`: 0, `f("docker")`: 0,
		`func() bool { switch s.Type { case "modal", "docker": return true }; return false }()`: 2,
	} {
		if got := comparedTypes(t, "mutant.go", "package p\nvar _ = "+code); len(got) != want {
			t.Errorf("%s: found %q, want %d places", code, got, want)
		}
	}
	seen := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, ".."+string(filepath.Separator)))
		owner, _, _ := strings.Cut(strings.TrimPrefix(rel, "primitives/"), "/")
		switch {
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "testdata" || rel == "e2e/bench" ||
			rel == "primitives/"+owner && slices.Contains(primitives.Types(), owner)):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go"):
			return nil
		}
		seen++
		for _, place := range comparedTypes(t, name, nil) {
			t.Errorf("%s compares the name of a type of sandbox: use a capability", place)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("only %d files were looked at", seen)
	}
}
