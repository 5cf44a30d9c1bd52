package testagents

import (
	"os"
	"path/filepath"
	"testing"
)

// Ripgrep returns the absolute path of ripgrep, which agents expect in a sandbox. It comes with
// the pinned Codex. If it is not installed, the test fails and is never skipped.
func Ripgrep(t testing.TB) string {
	t.Helper()
	exe := filepath.Join(filepath.Dir(Codex(t)), "..", "codex-path", "rg")
	if info, err := os.Stat(exe); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the ripgrep "+
			"that this test runs; there is none at %s", exe)
	}
	return filepath.Clean(exe)
}
