package testagents

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// OpenCode returns the absolute path of the pinned OpenCode program itself, which runs without
// Node. If it is not installed, the test fails and is never skipped.
func OpenCode(t testing.TB) string {
	t.Helper()
	exe, err := FindOpenCode()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// FindOpenCode is like OpenCode, for programs that are not tests.
func FindOpenCode() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	modules := filepath.Join(root, "e2e", "agents", "node_modules")
	platform := fmt.Sprintf("opencode-%s-%s", runtime.GOOS, arch)
	for _, pkg := range []string{platform, platform + "-baseline", platform + "-musl"} {
		exe := filepath.Join(modules, pkg, "bin", "opencode")
		if info, err := os.Stat(exe); err == nil && info.Mode().IsRegular() {
			return exe, nil
		}
	}
	return "", fmt.Errorf("run \"npm ci --prefix e2e/agents\" in the repository first: it installs the OpenCode "+
		"that this needs; there is none for %s/%s in %s", runtime.GOOS, runtime.GOARCH, modules)
}
