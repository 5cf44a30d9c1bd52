package files

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// open returns the files of a new sandbox, and its folders.
func open(t *testing.T) (*FS, primitives.Paths) {
	t.Helper()
	paths := primitives.PathsIn(filepath.Join(t.TempDir(), "session"))
	for _, dir := range paths.All() {
		must(t, os.MkdirAll(dir, 0o755))
	}
	f, err := New(Config{Backend: "local", Paths: paths, UID: -1, GID: -1})
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f, paths
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put makes a file and its parents with package os.
func put(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// wantFile checks a file with package os.
func wantFile(t *testing.T, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if string(got) != content {
		t.Errorf("%s holds %.60q, want %.60q", path, got, content)
	}
}

func write(ctx context.Context, f *FS, name, content string, opts primitives.WriteOptions) error {
	return f.WriteFile(ctx, name, bytes.NewReader([]byte(content)), opts)
}

func read(ctx context.Context, f *FS, name string) (string, error) {
	r, err := f.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// entries returns the names in a directory, including temporary ones.
func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// unprivileged runs the calling test again as an unprivileged user if this process is root. It
// reports whether the caller must run the test itself.
func unprivileged(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	const nobody = 65534
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chown(dir, nobody, nobody))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	return false
}
