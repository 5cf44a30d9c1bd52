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
	_ guest.Driver            = (*driver)(nil)
	_ guest.Ender             = (*driver)(nil)
	_ primitives.RunnerHolder = (*driver)(nil)
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
	out, err := run(ctx, askTimeout, d.cfg.Host, nil, serve, args...)
	if err != nil && strings.HasPrefix(string(out), missing) && strings.Contains(string(out), others) {
		if err := d.install(ctx); err != nil {
			return nil, err
		}
		return run(ctx, askTimeout, d.cfg.Host, nil, serve, args...)
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

// RunnerPath returns the path on the remote machine of the runner with this path here. It is empty
// if file is another runner, or if another user may be unable to run it.
func (d *driver) RunnerPath(file string) string {
	if file != d.cfg.Runner || d.cfg.User != "" {
		return ""
	}
	return path.Join(path.Dir(path.Dir(d.sandbox.Paths().Session)), "bin", d.program)
}
