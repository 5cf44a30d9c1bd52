package bundle

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The user names the cache's folder, so it may hold more than this package's binaries.
func TestOnlyOldBinariesAreRemovedFromTheCache(t *testing.T) {
	root := t.TempDir()
	chmod(t, root, 0o700)
	old := time.Now().Add(-2 * keepUnused)
	for _, name := range []string{
		"photos/2019.jpg", "source-code/main.c", "version-1/notes",
		"source-0123456789abcdef0123456789abcdef/envrunner-linux-amd64",
		"version-v0.1.0/envrunner-linux-arm64",
		"embedded-0123456789abcdef0123456789abcdef/envrunner-darwin-arm64",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("x"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Dir(file), old, old); err != nil {
			t.Fatal(err)
		}
	}
	f := search(t, Config{CacheDir: root})
	if _, err := f.cached(t.Context(), "version-v9.9.9", anyFile, writes("new")); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			left = append(left, e.Name())
		}
	}
	if want := []string{"photos", "source-code", "version-1", "version-v9.9.9"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}

func TestDamagedBinaryInTheCacheIsMadeAgain(t *testing.T) {
	fakeGo(t)
	f := search(t, Config{})
	built, err := f.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{"empty": nil, "cut off": whole[:len(whole)/2]} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(built, damaged, 0o755); err != nil {
				t.Fatal(err)
			}
			again, err := f.find(t.Context())
			if err != nil || again != built {
				t.Fatalf("find = %q, %v", again, err)
			}
			if err := f.isRunner(again); err != nil {
				t.Errorf("the damaged file is given out: %v", err)
			}
		})
	}
}

func TestWhatAKilledBuildLeftIsRemovedByTheNext(t *testing.T) {
	f := search(t, Config{})
	left := filepath.Join(f.cfg.CacheDir, "version-v1.0.0", ".new", "envrunner")
	if err := os.MkdirAll(filepath.Dir(left), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, []byte("half"), 0o700); err != nil {
		t.Fatal(err)
	}
	name, err := f.cached(t.Context(), "version-v1.0.0", anyFile, writes("whole"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "whole" {
		t.Errorf("the binary is %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Dir(left)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover is still there: %v", err)
	}
}

// The go command uses the nearest go.mod, and writes to it.
func TestDownloadHasNothingToDoWithAModuleFileAboveIt(t *testing.T) {
	f := search(t, Config{})
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy")
	releaseModule(t, f.source, filepath.Join(proxy, module, "@v"))
	t.Setenv("GOPROXY", "file://"+proxy)
	t.Setenv("GOMODCACHE", filepath.Join(dir, "modcache"))
	t.Setenv("GOSUMDB", "off")
	cleanModCache(t)
	foreign := filepath.Join(dir, "tmp", "go.mod")
	scratch := filepath.Join(dir, "tmp", "scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	const content = "module foreign\n\ngo 9.99\n"
	if err := os.WriteFile(foreign, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", scratch)
	f.version = released
	src, err := f.download(t.Context(), scratch)
	if err != nil || !strings.HasPrefix(src, filepath.Join(dir, "modcache")) {
		t.Errorf("download = %q, %v; want a folder of the module cache", src, err)
	}
	if got, err := os.ReadFile(foreign); err != nil || string(got) != content {
		t.Errorf("the module file above is %q, %v", got, err)
	}
}

func anyFile(string) error { return nil }

func writes(content string) func(context.Context, string) error {
	return func(_ context.Context, to string) error { return os.WriteFile(to, []byte(content), 0o700) }
}
