package bundle

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// released is the version of this module in the proxy that the test makes.
const released = "v0.0.1"

const userProgram = `package main

import (
	"context"
	"fmt"
	"os"

	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

func main() {
	name, err := bundle.Path(context.Background(), bundle.Config{CacheDir: os.Args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(name)
}
`

// A program that only did "go get" builds the runner from the module cache. If it was built with
// -trimpath, it does not know where its source is, and downloads the release that it was built
// with.
func TestProgramThatOnlyDidGoGetGetsItsRunner(t *testing.T) {
	f := search(t, Config{})
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy")
	releaseModule(t, f.source, filepath.Join(proxy, module, "@v"))
	out, err := f.goCommand(t.Context(), f.source, "env", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	// Other modules come from the existing download cache.
	t.Setenv("GOPROXY", "file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(out)), "cache", "download"))
	t.Setenv("GOMODCACHE", filepath.Join(dir, "modcache"))
	t.Setenv("GOSUMDB", "off")
	t.Setenv("GOFLAGS", "-mod=mod")
	cleanModCache(t)
	user := filepath.Join(dir, "user")
	for name, content := range map[string]string{
		"main.go": userProgram,
		"go.mod":  "module example.com/user\n\ngo 1.26.0\n\nrequire " + module + " " + released + "\n",
	} {
		if err := os.MkdirAll(user, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(user, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for flag, key := range map[string]string{"-trimpath=false": "source-", "-trimpath=true": "version-" + released} {
		program := filepath.Join(dir, "bin"+key, "program")
		build := exec.CommandContext(t.Context(), "go", "build", flag, "-o", program, ".")
		build.Dir = user
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		found, err := exec.CommandContext(t.Context(), program, filepath.Join(dir, "cache"+key)).CombinedOutput()
		runner := strings.TrimSpace(string(found))
		if err != nil || !strings.HasPrefix(filepath.Base(filepath.Dir(runner)), key) {
			t.Fatalf("%s: %v: %s", flag, err, found)
		}
		version, err := exec.CommandContext(t.Context(), runner, "version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(version), "envrunner "+released+" ") {
			t.Errorf("%s: envrunner version says %q, %v", flag, version, err)
		}
	}
}

// cleanModCache empties GOMODCACHE at the end of the test, because its files are read-only.
func cleanModCache(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := exec.Command("go", "clean", "-modcache").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// releaseModule puts the parts of the module that the runner and this package need
// into a module proxy.
func releaseModule(t *testing.T, source, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(dir, released+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(archive)
	for _, part := range append(slices.Clone(hashed), "internal/flock") {
		err := filepath.WalkDir(filepath.Join(source, part), func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(name, "_test.go") {
				return err
			}
			return addFile(w, module+"@"+released+strings.TrimPrefix(name, source), name)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		released + ".mod": string(mod), released + ".info": `{"Version":"` + released + `"}`, "list": released + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func addFile(w *zip.Writer, as, name string) error {
	to, err := w.Create(as)
	if err != nil {
		return err
	}
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = io.Copy(to, from)
	return err
}
