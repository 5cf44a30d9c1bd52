package ssh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// driver is the guest.Driver of one sandbox on a remote machine.
type driver struct {
	cfg     config
	id      string // set when the guest has answered
	program string // the name of the runner on the remote machine
	args    []string
	env     string // a script that exports the variables of Spec.Env

	sandbox *guest.Sandbox
	conn    *conn
	ended   bool // the guest has ended the sandbox
}

var (
	_ guest.Driver       = (*driver)(nil)
	_ guest.Ender        = (*driver)(nil)
	_ guest.RunnerHolder = (*driver)(nil)
)

// The scripts for the remote shell. The first argument is Provider.Root, the second is the name
// of the runner.
const (
	folders = `r=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/agentenv/ssh}; p=$r/bin/$2; `
	// serve reads the script with the environment, of $3 bytes, and then runs the guest. It
	// touches the runner, so that the runner's time says when it was last used.
	serve = folders + `[ -x "$p" ] || { echo ` + missing + `; [ ! -d "$r/sandboxes" ] || echo ` + others + `; exit 1; }; ` +
		`touch -c "$p" 2>/dev/null; [ "$3" = 0 ] || eval "$(dd bs=1 count="$3" 2>/dev/null)"; ` +
		`shift 3; exec "$p" guest --root "$r/sandboxes" "$@"`
	// install reads the runner, of $3 bytes, from standard input. It discards an incomplete
	// copy.
	install = folders + `umask 077; mkdir -p "$r/bin" && t=$p.$$ && trap 'rm -f "$t"' EXIT && cat >"$t" && [ "$(wc -c <"$t")" -eq "$3" ] && chmod 700 "$t" && mv "$t" "$p"`
)

// serve prints missing if this runner is not installed, and then also others if there may be
// sandboxes of another release.
const (
	missing = "agentenv: no runner"
	others  = "agentenv: sandboxes"
)

// envPrefix is the prefix of the variables that pass Spec.Env to the guest.
const envPrefix = "AGENTENV_SSH_ENV_"

// newDriver returns a driver whose guest gets these arguments.
func newDriver(cfg config, args ...string) (*driver, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	f, err := os.Open(cfg.Runner)
	if err != nil {
		return nil, fmt.Errorf("runner: %w; name the envrunner program for the platform of %s", err, cfg.Host)
	}
	defer func() { _ = f.Close() }() // it was only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fmt.Errorf("runner: %w", err)
	}
	d := &driver{cfg: cfg, args: args, program: "envrunner-" + hex.EncodeToString(sum.Sum(nil)[:16])}
	var env strings.Builder
	for i, entry := range cfg.Environ() {
		fmt.Fprintf(&env, "export %s%d=%s\n", envPrefix, i, quote(entry))
	}
	if d.env = env.String(); d.env != "" {
		d.args = append(d.args, "--env-from", envPrefix)
	}
	return d, nil
}

// open connects to the guest. If the machine has no runner, open copies it there first.
func (d *driver) open(ctx context.Context) (*guest.Sandbox, error) {
	s, err := d.openOnce(ctx)
	if failed, ok := errors.AsType[*guest.HandshakeError](err); ok && strings.Contains(failed.Output, missing) {
		if err := d.install(ctx); err != nil {
			return nil, err
		}
		s, err = d.openOnce(ctx)
	}
	if err != nil {
		return nil, err
	}
	d.sandbox, d.id = s, path.Base(s.Paths().Session)
	return s, nil
}

func (d *driver) openOnce(ctx context.Context) (*guest.Sandbox, error) {
	s, err := guest.Open(ctx, d, guest.Config{
		Backend: backend, Isolation: primitives.IsolationNone, Logger: d.cfg.Logger, HandshakeTimeout: handshakeTimeout, Kept: d.cfg.Keep,
	})
	if err != nil && d.conn != nil {
		d.conn.join()
	}
	return s, err
}

// install copies the runner to the remote machine.
func (d *driver) install(ctx context.Context) error {
	f, err := os.Open(d.cfg.Runner)
	if err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if d.cfg.Progress != nil {
		d.cfg.Progress("the runner is copied to " + d.cfg.Host)
	}
	if _, err := run(ctx, d.cfg.Host, f, install, d.cfg.Root, d.program, strconv.FormatInt(info.Size(), 10)); err != nil {
		return fmt.Errorf("copy the runner: %w", err)
	}
	return nil
}

// ID returns the sandbox's ID, which is unique on its machine.
func (d *driver) ID() string { return d.id }

// Dial starts the guest, or another guest beside it.
func (d *driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	c, err := start(ctx, d.cfg.Host, serve, append([]string{d.cfg.Root, d.program, strconv.Itoa(len(d.env))}, d.args...)...)
	if err != nil {
		return nil, err
	}
	d.conn = c
	if _, err := io.WriteString(c, d.env); err != nil {
		_ = c.Close()
		said := c.Stderr()
		c.join()
		return nil, fmt.Errorf("%w: %w: %s", primitives.ErrUnavailable, err, said)
	}
	return c, nil
}

// ask runs the runner on the remote machine to its end and returns its output. If the machine
// only has sandboxes of another release, ask first copies this runner.
func (d *driver) ask(ctx context.Context, args ...string) ([]byte, error) {
	args = append([]string{d.cfg.Root, d.program, "0"}, args...)
	out, err := run(ctx, d.cfg.Host, nil, serve, args...)
	if err != nil && strings.HasPrefix(string(out), missing) && strings.Contains(string(out), others) {
		if err := d.install(ctx); err != nil {
			return nil, err
		}
		return run(ctx, d.cfg.Host, nil, serve, args...)
	}
	return out, err
}

// State looks for the sandbox on its machine. A missing sandbox was terminated, by a program or
// because its grace period was over.
func (d *driver) State(ctx context.Context) (guest.Status, error) {
	info, err := d.find(ctx, d.id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info.Status = primitives.StatusTerminated
	case err != nil:
		return guest.Status{}, err
	}
	return guest.Status{State: primitives.State{Status: info.Status}}, nil
}

// BeginEnd lets the guest end the sandbox, which saves a second connection.
func (d *driver) BeginEnd(context.Context) (finish func(hangUp func() bool)) {
	return func(hangUp func() bool) {
		d.conn.polite.Store(true)
		d.ended = hangUp() && d.conn.awaitEnd() && d.conn.err == nil
	}
}

// End removes the sandbox.
func (d *driver) End(ctx context.Context) error {
	if d.ended {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_, err := d.ask(ctx, "--remove", d.id)
	return err
}

// Close waits for the ssh command. The sandbox lives on for its grace period, see
// [primitives.Spec].
func (d *driver) Close() error {
	d.conn.join()
	return nil
}

// Runner returns the path on the remote machine of the runner with this path here. It is empty
// if file is another runner, or if another user may be unable to run it.
func (d *driver) Runner(file string) string {
	if file != d.cfg.Runner || d.cfg.User != "" {
		return ""
	}
	return path.Join(path.Dir(path.Dir(d.sandbox.Paths().Session)), "bin", d.program)
}
