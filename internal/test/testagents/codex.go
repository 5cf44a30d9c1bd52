package testagents

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Codex returns the absolute path of the pinned Codex program itself, which runs without Node.
// If it is not installed, the test fails and is never skipped.
func Codex(t testing.TB) string {
	t.Helper()
	exe, err := FindCodex()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// FindCodex is like Codex, for programs that are not tests.
func FindCodex() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	pkg := filepath.Join(root, "e2e", "agents", "node_modules", "@openai", fmt.Sprintf("codex-%s-%s", runtime.GOOS, arch))
	found, err := filepath.Glob(filepath.Join(pkg, "vendor", "*", "bin", "codex"))
	if err == nil && len(found) == 1 {
		if info, err := os.Stat(found[0]); err == nil && info.Mode().IsRegular() {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the Codex "+
		"that this needs; there is none for %s/%s in %s", runtime.GOOS, runtime.GOARCH, pkg)
}
