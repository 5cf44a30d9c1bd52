package ssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// The runner is at <root>/bin/envrunner-<sha256> on the remote machine: the digest in its name is
// its version. Package guest compares the versions of the protocol when it connects.

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
	if _, err := run(ctx, installTimeout, d.cfg.Host, f, install, d.cfg.Root, d.program, strconv.FormatInt(info.Size(), 10)); err != nil {
		return fmt.Errorf("copy the runner: %w", err)
	}
	return nil
}
