// Package ssh is the sandbox that runs on another machine, which the system's ssh command
// reaches: its configuration, its agent and its jump hosts work.
//
// It keeps things apart, it does not lock anything in: commands can reach what the user
// that ssh logs in as can reach. The machine needs a shell sh, and cat, chmod, dd, mkdir,
// mv, rm and wc; one static program is copied to it, which is the guest.
//
// When no program is connected any more, the sandbox ends after its grace, see
// [Config].GraceSeconds. If its machine restarts meanwhile, [GC] removes what is left.
package ssh

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

const (
	backend = "ssh"
	// handshakeTimeout is how long ssh may take to connect, and the guest to start.
	handshakeTimeout = time.Minute
	// removeTimeout is how long the end of a sandbox may take.
	removeTimeout = time.Minute
)

// New makes a sandbox. ctx covers the making only. When New fails nothing is left of it
// but the runner.
//
// Errors: fs.ErrInvalid for a bad configuration, fs.ErrNotExist for a Runner that does not
// exist, [primitives.ErrUnavailable] if the machine cannot be reached or the guest does
// not work there.
func New(ctx context.Context, cfg Config) (*guest.Sandbox, error) {
	args := []string{"--stay", cfg.stay()}
	if cfg.Workspace != "" {
		args = append(args, "--workspace", cfg.Workspace)
	}
	if cfg.User != "" {
		args = append(args, "--user", cfg.User)
	}
	d, err := newDriver(cfg, args...)
	if err != nil {
		return nil, wrap("create", cfg.Host, err)
	}
	s, err := d.open(ctx)
	return s, wrap("create", cfg.Host, err)
}

// Attach returns a live sandbox of [New] by its ID, also one that another program made.
// Both share it. Of cfg only Host, Root, Runner, Logger and Progress count. An ID without
// a sandbox is fs.ErrNotExist.
func Attach(ctx context.Context, cfg Config, id string) (*guest.Sandbox, error) {
	cfg.Env = nil
	if !validID(id) {
		return nil, wrap("attach", id, errNoID)
	}
	d, err := newDriver(cfg, "--attach", id, "--linger")
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	s, err := d.open(ctx)
	if err != nil && ctx.Err() == nil {
		if _, ferr := d.find(ctx, id); errors.Is(ferr, fs.ErrNotExist) {
			err = ferr
		}
	}
	return s, wrap("attach", id, err)
}

// Info describes a sandbox that [List] found.
type Info struct {
	ID      string
	Created time.Time
	// Owned says that its guest runs, which ends it.
	Owned bool
}

// List returns the sandboxes of the machine, oldest first. Of cfg only Host, Root and
// Runner count.
func List(ctx context.Context, cfg Config) ([]Info, error) {
	d, err := newDriver(cfg)
	if err != nil {
		return nil, wrap("list", cfg.Host, err)
	}
	list, err := d.list(ctx)
	return list, wrap("list", cfg.Host, err)
}

func (d *driver) list(ctx context.Context) (list []Info, err error) {
	return list, d.askJSON(ctx, &list, "--list")
}

// askJSON decodes what the runner prints. A machine without it has no sandboxes.
func (d *driver) askJSON(ctx context.Context, into any, args ...string) error {
	out, err := d.ask(ctx, args...)
	if err != nil {
		if strings.HasPrefix(string(out), missing) {
			return nil
		}
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(into); err != nil {
		return fmt.Errorf("%w: what %s printed cannot be read: %w", primitives.ErrUnavailable, d.cfg.Host, err)
	}
	return nil
}

func (d *driver) find(ctx context.Context, id string) (Info, error) {
	list, err := d.list(ctx)
	if err != nil {
		return Info{}, err
	}
	for _, info := range list {
		if info.ID == id {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)
}

// Remove ends a sandbox, whatever runs in it. Of cfg only Host, Root and Runner count. An
// ID without a sandbox is fs.ErrNotExist.
func Remove(ctx context.Context, cfg Config, id string) error {
	if !validID(id) {
		return wrap("remove", id, errNoID)
	}
	d, err := newDriver(cfg)
	if err == nil {
		_, err = d.find(ctx, id)
	}
	if err == nil {
		d.id = id
		err = d.End(ctx)
	}
	return wrap("remove", id, err)
}

// GCOptions says what [GC] does. The zero value is what is always safe to do.
type GCOptions struct {
	// DryRun only tells what would be removed.
	DryRun bool
	// NoGrace also removes sandboxes whose grace is not over.
	NoGrace bool
}

// Garbage is a sandbox, or what is left of one, that [GC] removed or would remove.
type Garbage struct {
	ID      string
	Why     string // for people
	Created time.Time
}

// GC removes the runners of other releases that were not started for 30 days and that no
// process runs from, and the sandboxes whose guests have died, as after a restart of the machine. Their
// grace, of a minute, begins when GC first finds them. Of cfg only Host, Root and Runner
// count.
func GC(ctx context.Context, cfg Config, opts GCOptions) (removed []Garbage, err error) {
	d, err := newDriver(cfg)
	if err == nil {
		args := []string{"--gc"}
		if opts.DryRun {
			args = append(args, "--dry-run")
		}
		if opts.NoGrace {
			args = append(args, "--no-grace")
		}
		err = d.askJSON(ctx, &removed, args...)
	}
	return removed, wrap("gc", cfg.Host, err)
}

// Platform asks the machine which runner it needs: its operating system and architecture,
// as in runtime.GOOS and runtime.GOARCH. Of cfg only Host counts.
func Platform(ctx context.Context, cfg Config) (goos, goarch string, err error) {
	cfg.Runner = ""
	if err := cfg.check(); err != nil {
		return "", "", wrap("platform", cfg.Host, err)
	}
	out, err := run(ctx, cfg.Host, nil, "uname -sm")
	if err != nil {
		return "", "", wrap("platform", cfg.Host, err)
	}
	system, machine, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	goarch = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[machine]
	if system != "Linux" || goarch == "" {
		return "", "", wrap("platform", cfg.Host, fmt.Errorf("%w: the machine is %q; sandboxes need Linux on amd64 or arm64", errors.ErrUnsupported, system+" "+machine))
	}
	return "linux", goarch, nil
}

var errNoID = fmt.Errorf("%w: no sandbox can have this ID", fs.ErrNotExist)

func validID(id string) bool {
	return id != "" && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// wrap says where an error came from.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}
