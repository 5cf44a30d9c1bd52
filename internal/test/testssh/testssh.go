// Package testssh is an ssh server for tests.
package testssh

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testport"
)

// Alias is the server's name for the ssh command.
const Alias = "agentenv-test-machine"

// Server is a running sshd.
type Server struct {
	Address string // host:port

	log string
}

// Logins returns how many connections the server has accepted.
func (s *Server) Logins(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "Accepted publickey")
}

// Start starts a real sshd on the loopback interface, with its own keys. It puts an ssh command
// that knows these keys first in PATH. The login user is the user who runs the test.
func Start(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	// Do not run the user's own login scripts: they may be slow, or wait for those of another
	// test.
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	address, release := testport.Hold(t)
	t.Cleanup(release)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "known_hosts"), fmt.Sprintf("[127.0.0.1]:%s %s", port, hostKey))
	writeFile(t, filepath.Join(dir, "sshd_config"), strings.Join([]string{
		"ListenAddress " + address, "HostKey " + filepath.Join(dir, "host"), "AuthorizedKeysFile " + filepath.Join(dir, "user.pub"),
		"PidFile none", "UsePAM no", "StrictModes no", "PasswordAuthentication no", "PermitRootLogin prohibit-password",
		"SetEnv HOME=" + home + " DOCKER_CONFIG=" + dir + " XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "MaxStartups 200", "MaxSessions 200", "",
	}, "\n"))
	writeFile(t, filepath.Join(dir, "ssh_config"), strings.Join([]string{
		"IdentityFile " + filepath.Join(dir, "user"), "IdentitiesOnly yes", "UserKnownHostsFile " + filepath.Join(dir, "known_hosts"),
		"GlobalKnownHostsFile /dev/null", "Host " + Alias, "HostName 127.0.0.1", "Port " + port, "",
	}, "\n"))
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	sshd, err := exec.LookPath("/usr/sbin/sshd") // sshd requires an absolute path
	if err != nil {
		t.Fatal("run the set-up first: ", err)
	}
	wrapper := filepath.Join(dir, "bin", "ssh")
	writeFile(t, wrapper, fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, filepath.Join(dir, "ssh_config")))
	if err := os.Chmod(wrapper, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(wrapper)+":"+os.Getenv("PATH"))
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // normally created at boot
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), sshd, "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("sshd: %s", text)
		}
	})
	awaitAddress(t, address)
	return &Server{Address: address, log: log.Name()}
}

func awaitAddress(t testing.TB, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func writeFile(t testing.TB, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
