// Package testagents finds the real coding agents that tests run: the ones that
// e2e/agents pins and installs. It is for tests only.
package testagents

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Claude returns the absolute path of the pinned Claude Code program. It runs
// without Node. A test that asks for it fails, and never skips, where it is not
// installed.
func Claude(t testing.TB) string {
	t.Helper()
	exe, err := FindClaude()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// FindClaude is Claude for programs that are no tests.
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

// claudePackages names the npm packages that may hold the program for a platform;
// npm installs the one that fits the C library.
func claudePackages(goos, goarch string) []string {
	if goarch == "amd64" {
		goarch = "x64"
	}
	name := fmt.Sprintf("claude-code-%s-%s", goos, goarch)
	return []string{name, name + "-musl"}
}

// Folder returns the absolute path of the folder that has all of the agents, which a
// container can mount.
func Folder(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "e2e", "agents", "node_modules")
}

// moduleRoot is the folder of the go.mod that the running test belongs to; go
// test starts a test in the folder of its package.
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
