package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

func TestGuestServesASandboxThatEndsWithIt(t *testing.T) {
	root := t.TempDir()
	cmd := exec.CommandContext(t.Context(), runnerFile(t), "guest", "--root", root, "--env", "MARK=yes")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := guest.Dial(t.Context(), guest.Stdio(stdout, stdin), guest.Config{HandshakeTimeout: tooLong})
	if err != nil {
		t.Fatalf("%v; stderr: %s", err, &stderr)
	}
	res, err := primitives.Run(t.Context(), client, primitives.Command{Args: []string{"sh", "-c", "echo $MARK; pwd"}}, primitives.RunOptions{})
	if err != nil || string(res.Stdout) != "yes\n"+client.Paths().Workspace+"\n" {
		t.Errorf("%q, %v", res.Stdout, err)
	}
	proc, err := client.Exec(t.Context(), primitives.Command{Args: []string{"echo", "kept"}, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(proc.Stdout()); err != nil || string(out) != "kept\n" {
		t.Errorf("a durable command printed %q, %v", out, err)
	}
	if err := proc.Close(); err != nil {
		t.Error(err)
	}
	session := client.Paths().Session
	if rel, err := filepath.Rel(root, session); err != nil || strings.HasPrefix(rel, "..") {
		t.Errorf("the session %s is not below --root", session)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; stderr: %s", err, &stderr)
	}
	if _, err := os.Stat(session); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the session folder is still there: %v", err)
	}
}
