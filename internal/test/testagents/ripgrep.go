package testagents

import (
	"os"
	"path/filepath"
	"testing"
)

// Ripgrep returns the absolute path of a search tool that agents expect in a
// sandbox: the one that comes with the pinned Codex. A test that asks for it fails,
// and never skips, where it is not installed.
func Ripgrep(t testing.TB) string {
	t.Helper()
	exe := filepath.Join(filepath.Dir(Codex(t)), "..", "codex-path", "rg")
	if info, err := os.Stat(exe); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the ripgrep "+
			"that this test runs; there is none at %s", exe)
	}
	return filepath.Clean(exe)
}
