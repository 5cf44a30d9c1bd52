package bundle

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestEightProcessesBuildOnce(t *testing.T) {
	tool, err := goTool()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	wrapper := "#!/bin/sh\necho \"$1\" >> '" + calls + "'\nexec '" + tool + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(dir, "cache")
	var all sync.WaitGroup
	names := make([]string, 8)
	for i := range names {
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), asProcess+"="+cache, ExplicitVariable+"=", "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
			names[i] = strings.TrimSpace(string(out))
		})
	}
	all.Wait()
	if slices.ContainsFunc(names, func(n string) bool { return n == "" || n != names[0] }) {
		t.Errorf("the processes found different files: %q", names)
	}
	if got, err := os.ReadFile(calls); err != nil || string(got) != "build\n" {
		t.Errorf("go was called for %q, %v; want one build", got, err)
	}
}

func TestDigestFollowsEveryChangeOfTheSource(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sum := func() string {
		t.Helper()
		s, err := sourceDigest(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, name := range []string{"go.mod", "go.sum", "executor/a.go", "internal/ended/a.go", "internal/owner/a.go", "internal/patience/a.go", "internal/relink/a.go", "internal/sparse/a.go", "internal/tail/a.go", "primitives/a.go", "runnerscripts/runner/main.go", "runnerscripts/runner/x.json"} {
		write(name, "1")
	}
	first := sum()
	for _, name := range []string{"go.mod", "go.sum", "executor/a.go", "internal/ended/a.go", "internal/owner/a.go", "internal/patience/a.go", "internal/relink/a.go", "internal/sparse/a.go", "internal/tail/a.go", "primitives/a.go", "runnerscripts/runner/x.json", "runnerscripts/new.go"} {
		before := sum()
		write(name, "22")
		if sum() == before {
			t.Errorf("a change of %s does not change the digest", name)
		}
	}
	changed := sum()
	for _, name := range []string{"session/a.go", "internal/other/a.go", "primitives/a_test.go", "runnerscripts/testdata/x"} {
		write(name, "1")
	}
	if got := sum(); got != changed || got == first {
		t.Errorf("files that are not built change the digest")
	}
}

func TestDigestCoversEveryPackageOfTheRunner(t *testing.T) {
	f := search(t, Config{})
	out, err := f.goCommand(t.Context(), f.source, "list", "-deps", "./runnerscripts/runner")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for pkg := range strings.Lines(string(out)) {
		rel, ours := strings.CutPrefix(strings.TrimSpace(pkg), module+"/")
		if !ours {
			continue
		}
		count++
		if !slices.ContainsFunc(hashed, func(part string) bool { return strings.HasPrefix(rel+"/", part+"/") }) {
			t.Errorf("%s is part of the runner and not of the digest: add it to hashed", rel)
		}
	}
	if count < 3 {
		t.Errorf("go list found %d packages of this module", count)
	}
}

func TestReleaseBuildCarriesTheRunner(t *testing.T) {
	content := realRunner(t)
	f := search(t, Config{})
	dir := t.TempDir()
	inPackage := filepath.Join(f.source, "runnerscripts", "bundle")
	test := filepath.Join(dir, "carried_test.go")
	code := `package bundle
import ("testing"; "path/filepath"; "strings")
func TestCarried(t *testing.T) {
	f := newFinder(Config{CacheDir: t.TempDir() + "/cache"})
	f.executable = ""
	name, err := f.find(t.Context())
	if err != nil { t.Fatal(err) }
	if !strings.HasPrefix(filepath.Base(filepath.Dir(name)), "embedded-") { t.Fatal(name) }
	t.Log("carried")
}
`
	if err := os.WriteFile(test, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{
		filepath.Join(inPackage, "dist", f.fileName()): content,
		filepath.Join(inPackage, "zz_carried_test.go"): test,
	}
	tests, err := filepath.Glob(filepath.Join(inPackage, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests { // leave out all other tests
		replace[name] = ""
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := f.goCommand(t.Context(), f.source, "test", "-tags", "embedrunner", "-overlay", file,
		"-run", "TestCarried", "-v", "./runnerscripts/bundle")
	if err != nil || !strings.Contains(string(out), "carried") || !strings.Contains(string(out), "PASS: TestCarried") {
		t.Fatalf("%v\n%s", err, out)
	}
}
