package testagents

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Gemini returns the absolute path of the pinned Gemini CLI, a Node program. If it is not
// installed, the test fails and is never skipped.
func Gemini(t testing.TB) string {
	t.Helper()
	exe, err := FindGemini()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// FindGemini is like Gemini, for programs that are not tests.
func FindGemini() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	exe := filepath.Join(root, "e2e", "agents", "node_modules", "@google", "gemini-cli", "bundle", "gemini.js")
	if info, err := os.Stat(exe); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the Gemini CLI "+
			"that this needs; there is none at %s", exe)
	}
	return exe, nil
}
