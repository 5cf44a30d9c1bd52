package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/internal/servertoken"
)

// TestScriptsOverAServer runs scripts a second time: the sessions and sandboxes are those of a server, by AGENTENV_SERVER. At [server] a
// script says what is of one machine alone.
func TestScriptsOverAServer(t *testing.T) {
	var files []string
	for _, name := range []string{
		"branch", "checkpoints", "copy", "ended", "exec", "exec_ends", "interrupt", "kept", "named", "result", "run", "shown", "stubborn",
	} {
		files = append(files, filepath.Join("testdata", "script", name+".txtar"))
	}
	const token = "token-of-the-tests"
	runScripts(t, testscript.Params{Condition: ofServer(true), Files: files, Setup: func(e *testscript.Env) error {
		home := filepath.Join(e.WorkDir, "server")
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		e.Defer(func() { checkNothingLeft(t, home) }) // after the end of the server, which closes its sessions
		e.Setenv("AGENTENV_SERVER", startServer(t, e, home, token))
		e.Setenv(servertoken.Variable, token)
		return nil
	}}, nil, "sandbox: local\n")
}

// startServer starts 'envctl serve' as another user would, until the script ends, and returns its address.
func startServer(t *testing.T, e *testscript.Env, home, token string) string {
	t.Helper()
	file := filepath.Join(home, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("envctl")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "serve", "--listen", "127.0.0.1:0", "--token-file", file)
	cmd.Env = append(e.Vars, "HOME="+home, "XDG_CACHE_HOME="+filepath.Join(home, ".cache"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	e.Defer(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(fmt.Errorf("the server: %w: %s", err, said.String()))
		}
	})
	if err != nil {
		t.Fatal(err, said.String())
	}
	return strings.TrimSpace(url)
}
