package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// frozen is the image that a container was committed to, for copies. They have the same
// Paths. Ports with a number of their own on the engine's machine get free ones. Mounts
// are shared, as they are by all sandboxes that have them. The image is removed with the
// last copy.
type frozen struct {
	*driver
	image image.InspectResponse
}

// Freeze implements guest.Copier. For what cannot be copied see Snapshot.
func (d *driver) Freeze(ctx context.Context) (guest.Frozen, error) {
	id, err := d.commit(ctx, "", map[string]string{labelFork: d.id})
	if err != nil {
		return nil, err
	}
	img, err := d.eng.ImageInspect(ctx, id)
	if err == nil {
		err = checkLinks(ctx, d.eng, d.cfg, img)
	}
	if err != nil {
		return nil, errors.Join(d.explain(ctx, err), dropForks(ctx, d.eng, id))
	}
	return &frozen{d, img}, nil
}

// Drop removes the image.
func (f *frozen) Drop(ctx context.Context) error { return dropForks(ctx, f.eng, f.image.ID) }

// Copy makes a container with the settings of the first one. The guest is in the image.
func (f *frozen) Copy(ctx context.Context) (_ *guest.Sandbox, err error) {
	img, cfg := f.image, f.cfg
	cfg.Image, cfg.Name = img.ID, namePrefix+newID()
	cfg.Publish = slices.Clone(cfg.Publish)
	for i := range cfg.Publish {
		cfg.Publish[i].Host = 0
	}
	eng, err := engine.ShareAgain(f.eng, cfg.Host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, engine.Release(eng))
		}
	}()
	if cfg, err = cfg.openFolders(eng.DaemonHost()); err != nil {
		return nil, exchanged(err)
	}
	defer cfg.folders.close()
	if err := cfg.folders.sameAs(f.cfg.folders); err != nil {
		return nil, err
	}
	var program runnerOpener // nil: it is in the image, or mounted
	put := func(id string) error {
		if program == nil {
			return nil
		}
		return installRunner(ctx, eng, id, program)
	}
	if f.program != guestProgram { // the guest in the image is of another release
		cfg.sharedRunner, program = "", func(context.Context) (*runnerFile, error) { return openRunnerFile(f.cfg.Runner) }
	}
	cfg.Logger = logOf(cfg, cfg.Name)
	c, err := launch(ctx, eng, cfg.Name, cfg, img, put)
	// What could be mounted when this sandbox was made may be gone.
	if cfg.sharedRunner != "" && mayBeMounts(err) {
		cfg.sharedRunner, program = "", f.openRunner
		c, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if !cfg.NoSocket && mayBeMounts(err) {
		cfg.NoSocket = true
		c, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if err != nil {
		return nil, engine.Explain(eng, err)
	}
	c.forkedFrom = img.ID
	return c.handOver(), nil
}

// openRunner opens the runner that the sandbox has, of which there may be no other any
// more: what is mounted stays when its file is removed. Where the guest cannot be
// asked, for example because it is frozen, the file of this machine must do.
func (d *driver) openRunner(ctx context.Context) (*runnerFile, error) {
	info, err := d.sandbox.Stat(ctx, guestProgram)
	if err == nil {
		var r io.ReadCloser
		if r, err = d.sandbox.Open(ctx, guestProgram); err == nil {
			return &runnerFile{r, info.Size}, nil
		}
	}
	f, ferr := openRunnerFile(d.cfg.Runner)
	if ferr != nil {
		return nil, fmt.Errorf("resume the sandbox, or put its runner back to where it was: %w", errors.Join(ferr, err))
	}
	return f, nil
}

// dropForkImage is for a sandbox that has ended.
func (d *driver) dropForkImage(ctx context.Context) error {
	if d.forkedFrom == "" {
		return nil
	}
	return dropForks(ctx, d.eng, d.forkedFrom)
}
