package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentenv-dev/agentenv/internal/servertoken"
)

// TestScriptsOverAServer runs scripts a second time: the sessions and sandboxes are those of a server in another network namespace, by
// AGENTENV_SERVER. At [server] a script says what is of one machine alone.
func TestScriptsOverAServer(t *testing.T) {
	var files []string
	for _, name := range []string{
		"branch", "checkpoints", "copy", "ended", "exec", "exec_ends", "interrupt", "kept", "named", "port", "result", "run", "shown",
		"stubborn",
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

// namespaces counts the network namespaces of this process.
var namespaces atomic.Int64

// otherNetwork makes a network namespace that reaches this one, and returns its name and its address. It is removed when the script ends.
func otherNetwork(t *testing.T, e *testscript.Env) (name, address string) {
	t.Helper()
	n := namespaces.Add(1)
	name = fmt.Sprintf("agentenv-%d-%d", os.Getpid(), n)
	here := fmt.Sprintf("ae%d-%d", os.Getpid(), n)
	net := fmt.Sprintf("100.%d.%d.", 64+os.Getpid()/256%64, os.Getpid()%256) // addresses that no other network has
	ip := func(args ...string) {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", args...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	ip("netns", "add", name)
	e.Defer(func() { ip("netns", "del", name) })
	ip("link", "add", here, "type", "veth", "peer", "name", "there", "netns", name)
	e.Defer(func() { ip("link", "del", here) }) // the namespace may live on for a moment
	ip("addr", "add", fmt.Sprintf("%s%d/30", net, 4*(n%60)+1), "dev", here)
	ip("link", "set", here, "up")
	address = fmt.Sprintf("%s%d", net, 4*(n%60)+2)
	ip("-n", name, "addr", "add", address+"/30", "dev", "there")
	ip("-n", name, "link", "set", "there", "up")
	ip("-n", name, "link", "set", "lo", "up")
	return name, address
}

// startServer starts 'envctl serve' as another user would, in another network namespace, until the script ends, and returns its
// address.
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
	network, address := otherNetwork(t, e)
	cmd := exec.CommandContext(t.Context(), "nsenter", "--net=/run/netns/"+network, path, "serve", "--listen", address+":0", "--token-file", file)
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
