// Package ssh runs sandboxes on a remote machine, which it reaches with the system's ssh
// command: the user's ssh configuration, agent and jump hosts work.
//
// It separates sandboxes but does not isolate them: commands can reach everything that the
// login user can reach. The machine needs a shell sh, and cat, chmod, dd, mkdir, mv, rm and wc.
// The guest, one static program, is copied to it.
//
// When no program is connected any more, the sandbox ends after its grace period, see
// [primitives.Spec].Grace. If its machine restarts meanwhile, [Provider.GC] removes the
// orphaned sandbox. A kept sandbox lives until it is terminated or removed: after a restart of
// the machine it still has its files, but not its processes.
//
// Where to look: config.go checks the settings of a sandbox; ssh.go creates, attaches to, lists
// and removes sandboxes and calls the garbage collection of the remote machine; install.go
// copies the runner there; driver.go starts its guest, asks for its state and ends it; command.go
// runs the ssh command and explains its errors. guests.go of runnerscripts/runner, which runs on the
// remote machine, decides how long a sandbox without a client lives.
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

	"github.com/agentenv-dev/agentenv/internal/owner"
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

var (
	_ primitives.Provider    = Provider{}
	_ primitives.SpecChecker = Provider{}
	_ primitives.Collector   = Provider{}
	_ primitives.Detector    = Provider{}
	_ primitives.Addressed   = (*Provider)(nil)
)

// Create creates a sandbox. ctx covers only the creation. If Create fails, nothing of the
// sandbox remains but the runner. If Spec.Grace is zero, it is 30 seconds.
//
// Errors: fs.ErrInvalid for a bad setting, fs.ErrNotExist for a Runner that does not
// exist, [primitives.ErrUnavailable] if the machine cannot be reached or the guest does
// not work there.
func (p Provider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	cfg, err := p.config(ctx, spec)
	if err != nil {
		return nil, wrap("create", p.Host, err)
	}
	return asPrimitive(create(ctx, cfg))
}

// asPrimitive keeps a nil sandbox from becoming an interface that is not nil.
func asPrimitive(s *guest.Sandbox, err error) (primitives.EnvironmentPrimitive, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func create(ctx context.Context, cfg config) (*guest.Sandbox, error) {
	args := []string{"--stay", cfg.stay()}
	if cfg.Keep {
		args = append(args, "--keep")
	}
	if cfg.Session != "" {
		args = append(args, "--session", cfg.Session)
	}
	self, err := json.Marshal(creator{owner.Self(), guest.Version})
	if err != nil {
		return nil, wrap("create", cfg.Host, err)
	}
	args = append(args, "--owner", string(self))
	switch {
	case cfg.Workspace != "":
		args = append(args, "--workspace", cfg.Workspace)
	case cfg.WorkspacePath != "":
		args = append(args, "--workspace-path", cfg.WorkspacePath)
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

// Attach returns a live sandbox by its ID, also one that another program created. Both programs
// share it. An ID without a sandbox returns fs.ErrNotExist.
func (p Provider) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	cfg, err := p.config(ctx, primitives.Spec{})
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	return asPrimitive(attach(ctx, cfg, id))
}

func attach(ctx context.Context, cfg config, id string) (*guest.Sandbox, error) {
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

// List returns the sandboxes of the machine, oldest first. A sandbox whose guest has died, for
// example because the machine restarted, is [primitives.StatusLost]; if it is kept, Attach
// starts another guest in it.
func (p Provider) List(ctx context.Context) ([]primitives.Info, error) {
	d, err := p.driver(ctx)
	if err != nil {
		return nil, wrap("list", p.Host, err)
	}
	list, err := d.list(ctx)
	return list, wrap("list", p.Host, err)
}

// driver returns a driver without a sandbox.
func (p Provider) driver(ctx context.Context) (*driver, error) {
	cfg, err := p.config(ctx, primitives.Spec{})
	if err != nil {
		return nil, err
	}
	return newDriver(cfg)
}

func (d *driver) list(ctx context.Context) (list []primitives.Info, err error) {
	err = d.askJSON(ctx, &list, "--list")
	for i := range list {
		describe(&list[i])
	}
	return list, err
}

// creator is the part of a sandbox's state that identifies the program that created it.
type creator struct {
	owner.Identity
	Guest int // the version of its guest protocol
}

// describe changes the runner's view of a sandbox to the host's. For the runner, the owner is
// the guest; for the host, the owner is the program that started the guest.
func describe(info *primitives.Info) {
	served := info.Owned
	if !served {
		info.Status = primitives.StatusLost
	}
	var made creator
	if err := json.Unmarshal([]byte(info.Owner), &made); err != nil {
		made = creator{} // commands in the sandbox can change it; it is unknown
	} else {
		info.Owner = made.Host + ":" + made.PID
	}
	info.GuestVersion = made.Guest
	liveness := made.Liveness()
	info.Owned = liveness == owner.Alive
	info.Orphan = !info.Kept && (liveness == owner.Dead || !served)
}

// askJSON decodes the runner's output. A machine without the runner has no sandboxes.
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

func (d *driver) find(ctx context.Context, id string) (primitives.Info, error) {
	list, err := d.list(ctx)
	if err != nil {
		return primitives.Info{}, err
	}
	for _, info := range list {
		if info.ID == id {
			return info, nil
		}
	}
	return primitives.Info{}, fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)
}

// Remove ends a sandbox and everything that runs in it. An ID without a sandbox returns
// fs.ErrNotExist.
func (p Provider) Remove(ctx context.Context, id string) error {
	if !validID(id) {
		return wrap("remove", id, errNoID)
	}
	d, err := p.driver(ctx)
	if err == nil {
		_, err = d.find(ctx, id)
	}
	if err == nil {
		d.id = id
		err = d.End(ctx)
	}
	return wrap("remove", id, err)
}

// GC removes runners of other releases that were not started for 30 days and that no process
// runs from. It also removes sandboxes that are not kept and whose guests have died, for
// example because the machine restarted. Their grace period of one minute starts when GC first
// finds them.
func (p Provider) GC(ctx context.Context, opts primitives.GCOptions) (removed []primitives.Garbage, err error) {
	d, err := p.driver(ctx)
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
	return removed, wrap("gc", p.Host, err)
}

// Address returns Host, which a file may write after the type: "ssh:build1".
func (p *Provider) Address() *string { return &p.Host }

// Present reports whether Host is set.
func (p Provider) Present() bool { return p.Host != "" }

// platform asks the machine for its operating system and architecture, as in runtime.GOOS and
// runtime.GOARCH. They decide which runner it needs.
func (p Provider) platform(ctx context.Context) (goos, goarch string, err error) {
	out, err := run(ctx, askTimeout, p.Host, nil, "uname -sm")
	if err != nil {
		return "", "", fmt.Errorf("ask for the platform: %w", err)
	}
	system, machine, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	goarch = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[machine]
	if system != "Linux" || goarch == "" {
		return "", "", fmt.Errorf("%w: the machine is %q; sandboxes need Linux on amd64 or arm64", errors.ErrUnsupported, system+" "+machine)
	}
	return "linux", goarch, nil
}

var errNoID = fmt.Errorf("%w: no sandbox can have this ID", fs.ErrNotExist)

func validID(id string) bool {
	return id != "" && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// wrap adds to an error where it came from. It returns nil for nil.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}
