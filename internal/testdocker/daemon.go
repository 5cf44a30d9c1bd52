package testdocker

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/client"
)

// Daemon is a Docker engine of a test's own: with its own data, and without
// networks, in a network namespace of its own: an engine that has no bridge removes
// the one that it finds, which may be another engine's. It ends with the test.
type Daemon struct {
	dir      string
	args     []string
	listener *os.File // a TCP socket of the test's namespace; nil is none
	log      bytes.Buffer
	cmd      *exec.Cmd
}

// NewDaemon starts an engine with more arguments for its command. Besides its own
// socket it listens on l, unless that is nil, which is closed with the test.
func NewDaemon(t testing.TB, l *net.TCPListener, args ...string) *Daemon {
	t.Helper()
	dir := shortDir(t)
	config := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{dir: dir, args: append([]string{
		"--config-file", config, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", "unix://" + filepath.Join(dir, "s"),
		"--bridge", "none", "--iptables=false", "--ip-forward=false", "--shutdown-timeout", "5",
	}, args...)}
	if l != nil {
		file, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // file is another descriptor of it
		t.Cleanup(func() { _ = file.Close() })
		d.listener = file
		d.args = append(d.args, "--host", "fd://")
	}
	d.Start(t)
	t.Cleanup(func() { d.Stop(t) })
	return d
}

// Host is the engine's address.
func (d *Daemon) Host() string { return "unix://" + filepath.Join(d.dir, "s") }

// Start starts the engine again after Stop, with the same data.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	d.log.Reset()
	// A listener is handed over as systemd does it.
	d.cmd = exec.Command("unshare", append([]string{"--net", "sh", "-c", `LISTEN_PID=$$ exec dockerd "$@"`, "sh"}, d.args...)...)
	if d.listener != nil {
		d.cmd.ExtraFiles = []*os.File{d.listener}
		d.cmd.Env = append(os.Environ(), "LISTEN_FDS=1")
	}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for the test, which ends it
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", instruction, err)
	}
	eng := d.Engine(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := eng.Ping(ctx); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			d.Stop(t)
			t.Fatalf("an engine of the test's own did not start: %s", d.log.String())
		}
	}
}

// Stop ends the engine as its machine would, and waits for it.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	if d.cmd == nil {
		return
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("an engine of the test's own: %v: %s", err, d.log.String())
	}
	d.cmd = nil
}

// Engine returns a client that is closed with the test.
func (d *Daemon) Engine(t testing.TB) *client.Client {
	t.Helper()
	eng, err := client.NewClientWithOpts(client.WithHost(d.Host()), client.WithAPIVersionNegotiation(), withoutIdle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return eng
}

// Load copies images from the tests' usual engine.
func (d *Daemon) Load(t testing.TB, images ...string) {
	t.Helper()
	archive, err := Engine(t).ImageSave(t.Context(), slices.Clone(images))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	loaded, err := d.Engine(t).ImageLoad(t.Context(), archive)
	if err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer
	_, err = answer.ReadFrom(loaded.Body)
	_ = loaded.Body.Close()
	if err != nil || bytes.Contains(answer.Bytes(), []byte(`"error"`)) {
		t.Fatalf("load %v: %s, %v", images, answer.String(), err)
	}
}
