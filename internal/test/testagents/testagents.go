// Package testagents finds the real coding agents that tests run, as pinned and installed by
// e2e/agents. It is for tests only.
package testagents

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Claude returns the absolute path of the pinned Claude Code program, which runs without Node.
// If it is not installed, the test fails and is never skipped.
func Claude(t testing.TB) string {
	t.Helper()
	exe, err := FindClaude()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// FindClaude is like Claude, for programs that are not tests.
func FindClaude() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	modules := filepath.Join(root, "e2e", "agents", "node_modules")
	for _, pkg := range claudePackages(runtime.GOOS, runtime.GOARCH) {
		exe := filepath.Join(modules, "@anthropic-ai", pkg, "claude")
		if info, err := os.Stat(exe); err == nil && info.Mode().IsRegular() {
			return exe, nil
		}
	}
	return "", fmt.Errorf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the Claude Code "+
		"that this needs; there is none for %s/%s in %s", runtime.GOOS, runtime.GOARCH, modules)
}

// claudePackages returns the npm packages that may contain the program for a platform. npm
// installs the one for the machine's C library.
func claudePackages(goos, goarch string) []string {
	if goarch == "amd64" {
		goarch = "x64"
	}
	name := fmt.Sprintf("claude-code-%s-%s", goos, goarch)
	return []string{name, name + "-musl"}
}

// Folder returns the absolute path of the folder with all agents, for mounting in a container.
func Folder(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "e2e", "agents", "node_modules")
}

// moduleRoot returns the folder of the go.mod of the running test. "go test" starts a test in
// the folder of its package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("run this test with \"go test\" inside the repository: no go.mod above the working folder")
		}
		dir = parent
	}
}
