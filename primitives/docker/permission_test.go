package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// nobodyVariable names an engine. With it this program only lists the engine's sandboxes and prints
// the result.
const nobodyVariable = "AGENTENV_TEST_LIST"

func listAsNobody(host string) int {
	_, err := (docker.Config{Provider: docker.Provider{Host: host}}).List(context.Background())
	fmt.Printf("%v %v %v", errors.Is(err, fs.ErrPermission), errors.Is(err, primitives.ErrUnavailable), err)
	return 0
}

func TestASocketThatThisUserMayNotUse(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, to run a program as another user")
	}
	dir, err := os.MkdirTemp("", "") //nolint:usetesting // TempDir is for this user only
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket, program := filepath.Join(dir, "s"), filepath.Join(dir, "program")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	// By another process: a program that a parallel test starts would have a file that is written here
	// until its exec, and the system executes no such file.
	if out, err := exec.CommandContext(t.Context(), "install", "-m", "755", os.Args[0], program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const nobody = 65534
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = dir
	cmd.Env = []string{nobodyVariable + "=unix://" + socket, "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if got := string(out); err != nil || !strings.HasPrefix(got, "true true ") || !strings.Contains(got, "group of "+socket) {
		t.Errorf("%v: %s", err, got)
	}
}
