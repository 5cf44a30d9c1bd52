// Package modal is the sandbox that runs at Modal, https://modal.com.
//
// It creates the sandbox with Modal's own SDK, puts one static program into it and talks to
// that program, the guest, over the standard streams of one command. The guest does everything
// except the sandbox's life cycle, see package guest. So every operation is one message to
// Modal, and the sandbox supports what Modal's own calls do not, such as users, signals and
// terminals. The program is published once in an environment, as an image that all sandboxes
// mount and trust. [Provider.Create] builds that image in a separate, short-lived sandbox of a
// pinned image, which contains nothing of a user.
//
// The sandbox ends when no client has been connected to it for Spec.Grace, at the latest after
// [Provider].Timeout. So a program that crashes leaves nothing that costs money for long.
//
// Where to look, by file:
//
//	config, params, program  settings and their checks; Modal's parameters; images with agents
//	modal, record            Create, Attach; the settings that a sandbox stores for Attach
//	client, shared           the shared connection to Modal, retried by the SDK; cached IDs
//	runner, publish          put the guest into a sandbox; publish it for all sandboxes
//	driver, stream           connect to the guest; state and end of a sandbox; guest streams
//	snapshot, tags, list     snapshots and forks; owners; all sandboxes
//	gc, remove               collect orphans; end one sandbox
//	account, errors          credentials and history; the SDK's errors as the contract's
//
// # Orphans
//
// Tags of a sandbox identify its owner, the program that created it: machine, boot, process ID
// and start time of the process. [Provider.List] returns all sandboxes, and [Provider.GC] ends
// the garbage:
//
//	sandbox                       owner    GC
//	running                       alive    leaves it
//	kept, never complete          dead     ends it: its owner died while creating it
//	running                       unknown  leaves it: GC cannot look where its owner is or was
//	running, in its grace period  dead     leaves it: it ends by itself; ends it with NoGrace
//	running, in use               dead     leaves it: another program is attached to it
//	running, kept                 dead     leaves it until Modal ends it
//
// If a program is killed while it uploads a runner, Modal's own upload command keeps waiting
// for the rest, so the sandbox is not idle. A sandbox that only publishes the runner lives for
// five minutes at most, and GC ends it as one that was never complete.
package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

const backend = "modal"

// Create creates a sandbox with a guest in it. spec.Image is required. Create adds the parts of
// spec.Install that the image lacks. ctx covers the creation only. If Create fails, it leaves
// nothing behind.
//
// Errors: fs.ErrInvalid for a bad setting and an image that cannot be built,
// fs.ErrNotExist for an app, an image or a secret that does not exist, fs.ErrExist
// for a name that is taken, fs.ErrPermission for a token that is missing or refused,
// [primitives.ErrUnavailable] if Modal does not answer, has no room, or the sandbox
// ends at once.
func (p Provider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	cfg, err := p.config(ctx, spec)
	if err != nil {
		return nil, wrap("create", spec.Image, err)
	}
	s, err := create(ctx, cfg)
	if errors.Is(err, fs.ErrInvalid) && spec.Install.Program != "" {
		// Find out whether the program could not be added. Modal has cached what it built.
		if _, berr := cfg.buildImage(ctx); errors.Is(berr, fs.ErrInvalid) {
			err = cfg.cannotInstall(berr)
		}
	}
	if err != nil {
		return nil, wrap("create", spec.Image, err)
	}
	return s, nil
}

// CheckSpec implements primitives.SpecChecker.
func (p Provider) CheckSpec(spec primitives.Spec) error {
	cfg := config{Spec: spec, Provider: p}
	if p.Runner != nil {
		cfg.Runner = Arch // any: Create finds it
	}
	return cfg.check()
}

// config finds the runner and adds spec.Install to the image.
func (p Provider) config(ctx context.Context, spec primitives.Spec) (cfg config, err error) {
	cfg = config{Spec: spec, Provider: p}
	if err := cfg.findRunner(ctx); err != nil {
		return cfg, err
	}
	if err := cfg.check(); err != nil { // before installLine is added to the Dockerfile
		return cfg, err
	}
	if spec.Install.Program != "" {
		cfg.Dockerfile = append(slices.Clone(cfg.Dockerfile), installLine(spec.Install))
	}
	return cfg, nil
}

// findRunner sets Runner unless it is set or Provider.Runner is nil.
func (c *config) findRunner(ctx context.Context) (err error) {
	if c.Runner == "" && c.Provider.Runner != nil {
		c.Runner, err = c.Provider.Runner(ctx, "linux", Arch)
	}
	return err
}

func create(ctx context.Context, cfg config) (_ *guest.Sandbox, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	program, err := readRunner(cfg.Runner)
	if err != nil {
		return nil, err
	}
	c, err := connect(cfg.Provider)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	// Look the app up each time: a creation under way cannot be cancelled, so Modal must have
	// answered a call just before.
	app, err := c.findApp(ctx, cfg.Provider, true)
	if err != nil {
		return nil, err
	}
	written, err := cfg.record()
	if err != nil {
		return nil, err
	}
	publisher := program.publisher(ctx, c, app, cfg)
	defer publisher.stop()
	tags := sandboxTags(cfg, digest(written))
	box, err := c.makeSandbox(ctx, app, cfg, tags)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, endSandbox(ctx, box), box.Detach())
		}
	}()
	d := &driver{client: c, box: box, cfg: cfg, program: program, args: guestArgs(cfg), env: guestEnv(cfg)}
	again, err := program.install(ctx, publisher, box)
	if err != nil {
		return nil, d.explainStart(ctx, err)
	}
	err = d.open(ctx)
	if err != nil && again != nil && ctx.Err() == nil {
		if aerr := again(ctx); aerr != nil {
			return nil, d.explainStart(ctx, errors.Join(err, aerr))
		}
		err = d.open(ctx)
	}
	if err != nil {
		return nil, d.explainStart(ctx, err)
	}
	err = d.finishCreate(ctx, written, tags)
	if at := d.sandbox.Paths().Workspace; err == nil && cfg.WorkspacePath != "" && at != cfg.workspacePath() {
		err = cfg.invalid("workspace_path", fmt.Sprintf("the snapshot %s has its workspace at %s; leave it out", cfg.Image, at))
	}
	if err != nil {
		return nil, errors.Join(d.explainStart(ctx, err), d.sandbox.Close())
	}
	d.owned.Store(true)
	return d.sandbox, nil
}

// makeSandbox creates the sandbox itself.
func (c *client) makeSandbox(ctx context.Context, app *sdk.App, cfg config, tags map[string]string) (*sdk.Sandbox, error) {
	image, old, err := c.knownImage(ctx, app, cfg)
	if err != nil {
		return nil, err
	}
	params, err := c.params(ctx, cfg)
	if err != nil {
		return nil, err
	}
	params.Tags = tags
	box, err := c.createBox(ctx, app, image, params)
	if err != nil && old && isStale(err) && ctx.Err() == nil {
		// The cached image may no longer exist.
		c.known.forget(imageKey(app, cfg))
		if image, _, err = c.knownImage(ctx, app, cfg); err == nil {
			box, err = c.createBox(ctx, app, image, params)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("name: %w; choose another, or attach to the sandbox that has it", err)
	}
	return box, err
}

// isStale reports whether a sandbox may have failed because its image does not exist.
func isStale(err error) bool {
	return isNotFound(err) || errors.Is(err, fs.ErrInvalid) || status.Code(err) == codes.FailedPrecondition
}

// createBox calls Modal to create the sandbox.
func (c *client) createBox(ctx context.Context, app *sdk.App, image *sdk.Image, params *sdk.SandboxCreateParams) (*sdk.Sandbox, error) {
	// Modal finishes a creation even if the caller gives up. Wait for the answer, so that no
	// sandbox is left behind.
	patient, cancel := patience.Outlast(ctx, endTimeout)
	defer cancel()
	box, err := c.Sandboxes.Create(patient, app, image, params)
	if ctx.Err() != nil {
		if err == nil {
			err = errors.Join(endSandbox(ctx, box), box.Detach())
		}
		return nil, errors.Join(ctx.Err(), explain(err))
	}
	if err != nil {
		return nil, explain(err)
	}
	return box, nil
}

// imageKey returns the cache key of the image: everything that it is built from.
func imageKey(app *sdk.App, cfg config) string {
	return strings.Join(append([]string{"image " + app.AppID, cfg.Image}, cfg.Dockerfile...), "\x00")
}

// knownImage returns the cached image, or builds it. old reports that it was cached.
func (c *client) knownImage(ctx context.Context, app *sdk.App, cfg config) (image *sdk.Image, old bool, err error) {
	id, old, err := c.known.getOrFetch(ctx, imageKey(app, cfg), func(ctx context.Context) (string, error) {
		image, err := c.image(ctx, app, cfg)
		if err != nil {
			return "", err
		}
		return image.ImageID, nil
	})
	return &sdk.Image{ImageID: id}, old, err
}

// image builds the image of the configuration.
func (c *client) image(ctx context.Context, app *sdk.App, cfg config) (*sdk.Image, error) {
	var image *sdk.Image
	if strings.HasPrefix(cfg.Image, imagePrefix) {
		var err error
		if image, err = c.Images.FromID(ctx, cfg.Image, nil); err != nil {
			return nil, fmt.Errorf("image: %w", explain(err))
		}
	} else {
		image = c.Images.FromRegistry(cfg.Image, nil)
	}
	image = image.DockerfileCommands(cfg.Dockerfile, nil)
	if image.ImageID == "" {
		defer cfg.progressAfter("Modal builds the image of " + cfg.Image)()
	}
	built, err := image.Build(ctx, app, nil)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("image: %w", explain(err))
	}
	return built, nil
}

// Attach returns a live sandbox by its ID, or by its name in the provider's app. Another
// program may have created it; both share it. If another release of this package created the
// sandbox, its guest may speak another version of the protocol. Then Attach installs the guest
// of this release beside that one, which keeps serving its clients.
//
// Errors: an ID without a sandbox is fs.ErrNotExist, as is a sandbox that this package did not
// create. A sandbox that has ended is fs.ErrNotExist and either [primitives.ErrTerminated] or
// [primitives.ErrUnavailable].
func (p Provider) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	s, err := attach(ctx, config{Provider: p}, id)
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	return s, nil
}

func attach(ctx context.Context, cfg config, id string) (_ *guest.Sandbox, err error) {
	if !validName(id) {
		return nil, fmt.Errorf("%w: no sandbox can have this ID or name", fs.ErrNotExist)
	}
	c, err := connect(cfg.Provider)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	box, tags, err := c.findSandbox(ctx, cfg.Provider, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, box.Detach())
		}
	}()
	d := &driver{client: c, box: box, cfg: cfg, args: attachArgs()}
	err = d.open(ctx)
	if _, is := errors.AsType[*guest.VersionError](err); is {
		err = d.openBeside(ctx, err)
	}
	if err != nil {
		return nil, d.explainStart(ctx, err)
	}
	d.readRecord(ctx, tags[tagSettings], cfg)
	d.owned.Store(true)
	return d.sandbox, nil
}
