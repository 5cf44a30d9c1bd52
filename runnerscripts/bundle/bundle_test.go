package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

// asProcess is the variable that makes the test binary call Path once and print the result.
const asProcess = "BUNDLE_TEST_AS_PROCESS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asProcess); dir != "" {
		name, err := Path(context.Background(), Config{CacheDir: dir})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(name)
		os.Exit(0)
	}
	testleak.Main(m)
}

// search returns a finder that finds only what the test provides.
func search(t *testing.T, cfg Config) *finder {
	t.Helper()
	t.Setenv(ExplicitVariable, "")
	if cfg.CacheDir == "" {
		cfg.CacheDir = filepath.Join(t.TempDir(), "cache")
	}
	f := newFinder(cfg)
	f.executable = filepath.Join(t.TempDir(), "program")
	return f
}

// realRunner returns the runner that all tests share.
func realRunner(t *testing.T) string {
	t.Helper()
	name, err := Path(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// fakeGo replaces the go command by one that copies the real runner instead of building it. It
// returns a function that returns the calls.
func fakeGo(t *testing.T) (calls func() []string) {
	t.Helper()
	dir, runner := t.TempDir(), realRunner(t)
	log := filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"$*\" >>'" + log + "'\nwhile [ \"$1\" != -o ]; do shift; done\nexec cp '" + runner + "' \"$2\"\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return slices.Collect(strings.Lines(string(text)))
	}
}

func TestMatchingBuildIsFoundInEveryPlaceInOrder(t *testing.T) {
	calls := fakeGo(t)
	f := search(t, Config{})
	var told []string
	f.cfg.Progress = func(s string) { told = append(told, s) }

	built, err := f.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || !strings.Contains(told[0], "building the runner") {
		t.Errorf("progress was %q, want one message about the build", told)
	}
	out, err := exec.CommandContext(t.Context(), built, "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "envrunner ") {
		t.Fatalf("envrunner version: %v, %q", err, out)
	}

	again, err := f.find(t.Context())
	if made := calls(); err != nil || again != built || len(told) != 1 || len(made) != 1 {
		t.Errorf("second search = %q, %v, progress %q, go called for %q; want the cached %q without a build", again, err, told, made, built)
	}

	for _, base := range []string{"envrunner", f.fileName()} {
		beside := filepath.Join(filepath.Dir(f.executable), base)
		copyFile(t, built, beside, 0o755)
		if got, err := f.find(t.Context()); err != nil || got != beside {
			t.Errorf("with %s beside the program: %q, %v; want it", base, got, err)
		}
	}

	named := filepath.Join(t.TempDir(), "mine")
	copyFile(t, built, named, 0o755)
	f.cfg.Explicit = named
	if got, err := f.find(t.Context()); err != nil || got != named {
		t.Errorf("named explicitly: %q, %v; want %q", got, err, named)
	}
	t.Setenv(ExplicitVariable, named)
	if got, err := Path(t.Context(), Config{}); err != nil || got != named {
		t.Errorf("named by the environment: %q, %v; want %q", got, err, named)
	}
	f.cfg.OS = "plan9"
	if _, err := f.find(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("named explicitly but of another platform: %v, want ErrNotFound", err)
	}
}

func TestUnusableExplicitPathIsAnErrorAndNothingElseIsTried(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		filepath.Join(dir, "missing"): fs.ErrNotExist,
		plain:                         fs.ErrPermission,
		dir:                           ErrNotFound,
	} {
		_, err := Path(t.Context(), Config{Explicit: name, CacheDir: filepath.Join(dir, "cache")})
		if !errors.Is(err, ErrNotFound) || !errors.Is(err, want) {
			t.Errorf("Explicit %s: %v, want ErrNotFound and %v", name, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "cache")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cache was touched: %v", err)
	}
}

func TestFileThatOthersCouldHavePutThereIsNotUsed(t *testing.T) {
	fakeGo(t)
	f := search(t, Config{})
	built, err := f.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(f.executable)
	beside := filepath.Join(dir, "envrunner")
	cases := map[string]struct{ dir, file os.FileMode }{
		"world-writable folder":                {0o777, 0o755},
		"world-writable folder, sticky as tmp": {0o777 | fs.ModeSticky, 0o755},
		"world-writable file":                  {0o755, 0o757},
		"not executable":                       {0o755, 0o644},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			copyFile(t, built, beside, c.file)
			chmod(t, dir, c.dir)
			if got, err := f.find(t.Context()); err != nil || got != built {
				t.Errorf("find = %q, %v; want the cached one", got, err)
			}
		})
	}
	t.Run("another program", func(t *testing.T) {
		chmod(t, dir, 0o755)
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, exe, beside, 0o755)
		if got, err := f.find(t.Context()); err != nil || got != built {
			t.Errorf("find = %q, %v; want the cached one", got, err)
		}
	})
}

func TestCacheThatOthersCanWriteToIsRefused(t *testing.T) {
	dir := t.TempDir()
	chmod(t, dir, 0o777)
	f := search(t, Config{CacheDir: dir})
	if _, err := f.find(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("find = %v, want ErrNotFound that says chmod 700", err)
	}
}

func TestCacheBelongsToTheUserAlone(t *testing.T) {
	f := search(t, Config{CacheDir: filepath.Join(t.TempDir(), "a", "b")})
	if _, err := f.cacheDir(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.cfg.CacheDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode is %v, %v; want 0700", info.Mode(), err)
	}
}

func TestErrorListsAllThatWasTriedAndHowToMend(t *testing.T) {
	f := search(t, Config{OS: "linux", Arch: "arm64"})
	t.Setenv("PATH", t.TempDir())
	t.Setenv("GOROOT", "")
	_, err := f.find(t.Context())
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("find = %v, want ErrNotFound", err)
	}
	for _, part := range []string{
		"linux/arm64", "install go1.", "bundle.Embed", "envrunner-linux-arm64 beside", ExplicitVariable,
		filepath.Dir(f.executable), "embedrunner", "there is no go command",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
	if strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("each try is one line:\n%v", err)
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	f = search(t, Config{})
	f.cfg.CacheDir = ""
	if _, err := f.find(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "set HOME") {
		t.Errorf("without a home: %v", err)
	}
	f = search(t, Config{})
	f.source, f.version = "", ""
	if _, err := f.find(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "-trimpath") {
		t.Errorf("without source and version: %v", err)
	}
}

func TestARunnerThatTheProgramCarriesIsUsedWithoutTheGoCommand(t *testing.T) {
	runner, err := os.ReadFile(realRunner(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("GOROOT", "")
	t.Cleanup(func() { carried.Store(nil) })
	f := search(t, Config{})
	Embed(fstest.MapFS{"some/folder/" + f.fileName(): {Data: runner}})
	found, err := f.find(t.Context())
	if err != nil || f.isRunner(found) != nil || !strings.HasPrefix(filepath.Base(filepath.Dir(found)), "embedded-") {
		t.Errorf("found %q, %v", found, err)
	}
	// A cached binary that differs from the embedded one is written again.
	if err := os.WriteFile(found, []byte("damaged"), 0o755); err != nil {
		t.Fatal(err)
	}
	if again, err := f.find(t.Context()); err != nil || f.isRunner(again) != nil {
		t.Errorf("after damage: %q, %v", again, err)
	}
	for name, files := range map[string]fstest.MapFS{
		"cannot be used":         {f.fileName(): {Data: []byte("#!/bin/sh\n")}},
		"has no " + f.fileName(): {"envrunner-plan9-amd64": {Data: runner}},
	} {
		Embed(files)
		f := search(t, Config{})
		if _, err := f.find(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelledBuildLeavesNothingBehind(t *testing.T) {
	f := search(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	f.cfg.Progress = func(string) { cancel() }
	if _, err := f.find(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("find = %v, want context.Canceled", err)
	}
	err := filepath.WalkDir(f.cfg.CacheDir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == ".new" {
			t.Errorf("%s was left behind", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBuildForAnotherPlatformIsStatic(t *testing.T) {
	f := search(t, Config{OS: "linux", Arch: "arm64"})
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", filepath.Join(t.TempDir(), "missing.work"))
	name, err := f.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.matches(name, true); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Size() > 10<<20 {
		t.Errorf("size is %d, %v; want at most 10 MiB", info.Size(), err)
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	// Write a new file each time: the file of a running program cannot be written to.
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, bytes.Clone(content), mode); err != nil {
		t.Fatal(err)
	}
	chmod(t, to, mode)
}

func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func TestPlatformDefaultsToThisMachine(t *testing.T) {
	if f := search(t, Config{}); f.fileName() != "envrunner-"+runtime.GOOS+"-"+runtime.GOARCH {
		t.Errorf("fileName = %q", f.fileName())
	}
}
