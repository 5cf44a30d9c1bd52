package testdocker

import (
	"bufio"
	"bytes"
	"context"
	"io"
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

// Daemon is a private Docker engine for a test, with its own data and without networks. It runs
// in its own network and mount namespaces: an engine without a bridge removes an existing one,
// which may belong to another engine. It ends with the test, even if the test is killed.
type Daemon struct {
	dir      string
	args     []string
	listener *os.File // a TCP socket of the test's namespace; may be nil
	log      bytes.Buffer
	keeper   *exec.Cmd
	orders   io.WriteCloser
	answers  *bufio.Reader
}

// maxLog is how many bytes of the engine's log are shown.
const maxLog = 4 << 10

// keeperScript starts and stops the engine on commands from its standard input, each time in
// the same namespaces. It passes on a listener as systemd does.
const keeperScript = `
exec 4<&0 5>&1 >&2 # orders, answers
stop() {
	[ -z "$daemon" ] && return
	kill $daemon
	wait $daemon
	echo stopped $? >&5
	daemon=
}
while read -r order <&4; do
	case $order in
	start)
		sh -c 'LISTEN_PID=$$ exec dockerd "$@"' sh "$@" 4<&- 5>&- &
		daemon=$! ;;
	stop) stop ;;
	esac
done
stop`

// NewDaemon starts an engine with additional arguments. Besides its own socket it listens on l,
// unless that is nil. l is closed with the test.
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
		"--bridge", "none", "--iptables=false", "--ip-forward=false", "--shutdown-timeout", "60",
	}, args...)}
	if l != nil {
		file, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // file is a duplicate of it
		t.Cleanup(func() { _ = file.Close() })
		d.listener = file
		d.args = append(d.args, "--host", "fd://")
	}
	d.keep(t)
	d.Start(t)
	return d
}

// keep starts the keeper, which ends with the test.
func (d *Daemon) keep(t testing.TB) {
	t.Helper()
	// The keeper ends after it has stopped the engine.
	d.keeper = exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", append([]string{"--net", "--mount", "sh", "-c", keeperScript, "sh"}, d.args...)...)
	if d.listener != nil {
		d.keeper.ExtraFiles = []*os.File{d.listener}
		d.keeper.Env = append(os.Environ(), "LISTEN_FDS=1")
	}
	orders, err := d.keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := d.keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.orders, d.answers = orders, bufio.NewReader(answers)
	d.keeper.Stderr = &d.log
	d.keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt must reach the test only
	if err := d.keeper.Start(); err != nil {
		t.Fatalf("%s: %v", instruction, err)
	}
	t.Cleanup(func() {
		_ = orders.Close()
		_, _ = io.Copy(io.Discard, d.answers) // to EOF
		if err := d.keeper.Wait(); err != nil {
			t.Errorf("an engine of the test's own: %v", err)
		}
		if t.Failed() {
			log := d.log.String()
			t.Logf("the end of what the engine said: %s", log[max(0, len(log)-maxLog):])
		}
	})
}

// Host returns the engine's address.
func (d *Daemon) Host() string { return "unix://" + filepath.Join(d.dir, "s") }

// Start starts the engine and waits until it answers. After Stop it starts it with the same
// data.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	if _, err := io.WriteString(d.orders, "start\n"); err != nil {
		t.Fatal(err)
	}
	eng := d.Engine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
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
			t.Fatal("an engine of the test's own did not start")
		}
	}
}

// Stop stops the engine as a shutdown of its machine would, and waits for it.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	if _, err := io.WriteString(d.orders, "stop\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := d.answers.ReadString('\n'); err != nil || answer != "stopped 0\n" {
		t.Fatalf("an engine of the test's own: %q, %v", answer, err)
	}
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

// Load copies images from the tests' usual engine to this one.
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
