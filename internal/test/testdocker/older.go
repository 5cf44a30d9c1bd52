package testdocker

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// OlderRunner builds an envrunner for sandboxes of this machine whose guest speaks the previous
// protocol version, and returns its content.
func OlderRunner(t *testing.T) []byte {
	t.Helper()
	const module = "github.com/agentenv-dev/agentenv"
	folder, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", module+"/primitives/guest").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	source := filepath.Join(strings.TrimSpace(string(folder)), "handshake.go")
	code, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	older := bytes.Replace(code, []byte("const Version = "), []byte("const Version = -1 + "), 1)
	if bytes.Equal(older, code) {
		t.Fatal("handshake.go declares no const Version")
	}
	dir := t.TempDir()
	changed, runner := filepath.Join(dir, "handshake.go"), filepath.Join(dir, "envrunner")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	if err == nil {
		err = errors.Join(os.WriteFile(changed, older, 0o600), os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags=nethttpomithttp2", "-ldflags", "-s -w",
		"-overlay", filepath.Join(dir, "overlay.json"), "-o", runner, module+"/runnerscripts/runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(runner)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
