package testagents

import (
	"os"
	"path/filepath"
	"testing"
)

// Gemini returns the absolute path of the pinned Gemini CLI, a program of Node. A
// test that asks for it fails, and never skips, where it is not installed.
func Gemini(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(root, "e2e", "agents", "node_modules", "@google", "gemini-cli", "bundle", "gemini.js")
	if info, err := os.Stat(exe); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the Gemini CLI "+
			"that this test runs; there is none at %s", exe)
	}
	return exe
}
