package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// startSSHServer starts a real sshd on the loopback device, with keys of its own,
// and puts an ssh command that knows them first in PATH. It returns the server's
// host:port.
func startSSHServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	address := freeAddress(t)
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
		"SetEnv DOCKER_CONFIG=" + dir, "",
	}, "\n"))
	writeFile(t, filepath.Join(dir, "ssh_config"), strings.Join([]string{
		"IdentityFile " + filepath.Join(dir, "user"), "IdentitiesOnly yes", "UserKnownHostsFile " + filepath.Join(dir, "known_hosts"),
		"GlobalKnownHostsFile /dev/null", "",
	}, "\n"))
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	sshd, err := exec.LookPath("/usr/sbin/sshd") // it insists on its absolute path
	if err != nil {
		t.Fatal("run the set-up first: ", err)
	}
	wrapper := filepath.Join(dir, "bin", "ssh")
	writeFile(t, wrapper, fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, filepath.Join(dir, "ssh_config")))
	if err := os.Chmod(wrapper, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(wrapper)+":"+os.Getenv("PATH"))
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where a boot would make it
		t.Fatal(err)
	}
	cmd := exec.Command(sshd, "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
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
	return address
}

func awaitAddress(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", address)
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

func TestAnEngineBehindSSH(t *testing.T) {
	cleanEngineEnv(t)
	cfg := config(t, testdocker.Busybox(t))
	socket := strings.TrimPrefix(testdocker.NewProxy(t).Host(), "unix://")
	address := startSSHServer(t)

	t.Run("a sandbox", func(t *testing.T) {
		cfg := cfg
		cfg.Host = "ssh://root@" + address
		s := open(t, cfg)
		if got := output(t, s, "echo", "hello"); got != "hello\n" {
			t.Errorf("got %q", got)
		}
		second, err := docker.Attach(t.Context(), cfg, s.ID())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = second.Close() }()
		if got := output(t, second, "echo", "again"); got != "again\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("another socket over there, by a context", func(t *testing.T) {
		writeContext(t, cleanEngineEnv(t), "far", map[string]any{"Host": "ssh://" + address + socket})
		t.Setenv("DOCKER_CONTEXT", "far")
		if _, err := docker.List(t.Context(), docker.Config{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a socket that is not there", func(t *testing.T) {
		failsWith(t, "ssh://root@"+address+"/no/such'; echo $HOME", "/no/such'; echo $HOME")
	})
	t.Run("a user that is not let in", func(t *testing.T) {
		failsWith(t, "ssh://nobody@"+address, "Permission denied")
	})
	t.Run("nobody listens", func(t *testing.T) {
		failsWith(t, "ssh://root@"+freeAddress(t), "refused")
	})
	t.Run("a host key that is not known", func(t *testing.T) {
		// The name, unlike the address, is not in the list of known hosts.
		_, port, _ := net.SplitHostPort(address)
		failsWith(t, "ssh://root@localhost:"+port, "verification failed")
	})
	t.Run("a context that ends", func(t *testing.T) {
		// A server that accepts and is silent, as behind a firewall.
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := docker.List(ctx, docker.Config{Host: "ssh://" + silent.Addr().String()}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no ssh command", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if _, err := docker.List(t.Context(), docker.Config{Host: "ssh://root@" + address}); !errors.Is(err, primitives.ErrUnavailable) || !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
}

// failsWith expects that the engine is unavailable, and that ssh's words are told.
func failsWith(t *testing.T, host, words string) {
	t.Helper()
	_, err := docker.List(t.Context(), docker.Config{Host: host})
	if !errors.Is(err, primitives.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), words) {
		t.Errorf("%q does not say %q", err, words)
	}
}
