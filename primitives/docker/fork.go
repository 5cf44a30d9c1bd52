package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/primitives"
)

// forksAtOnce bounds how many containers are made at the same time.
const forksAtOnce = 8

// Fork implements primitives.Forker: the copies are containers of one image that
// the container is committed to, frozen meanwhile, and that goes with the last of
// them. They have the same Paths. Ports with a number of their own on the engine's
// machine get free ones. Mounts are shared, as they are by all sandboxes that have
// them. For what cannot be copied see [Sandbox.Snapshot].
func (s *Sandbox) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	copies, err := s.fork(ctx, n)
	if err != nil {
		return nil, wrap("fork", s.id, err)
	}
	return copies, nil
}

func (s *Sandbox) fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	if err := s.live(); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: ask for at least one copy, not %d", fs.ErrInvalid, n)
	}
	id, err := s.commit(ctx, "", map[string]string{labelFork: s.id})
	if err != nil {
		return nil, err
	}
	img, err := s.eng.ImageInspect(ctx, id)
	if err != nil {
		return nil, errors.Join(s.explain(err), dropImage(ctx, s.eng, id))
	}
	if err := checkLinks(ctx, s.eng, s.cfg, img); err != nil {
		return nil, errors.Join(s.explain(err), dropImage(ctx, s.eng, id))
	}
	copies, err := s.forks(ctx, n, img)
	if err == nil {
		return copies, nil
	}
	errs := []error{err}
	for _, c := range copies {
		if c != nil {
			_, err := c.Terminate(context.WithoutCancel(ctx))
			errs = append(errs, err, c.Close())
		}
	}
	return nil, errors.Join(append(errs, dropImage(ctx, s.eng, id))...)
}

// forks makes the containers. When one fails the others are given up; those that
// were made are returned, too.
func (s *Sandbox) forks(ctx context.Context, n int, img image.InspectResponse) ([]primitives.EnvironmentPrimitive, error) {
	work, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	copies := make([]primitives.EnvironmentPrimitive, n)
	turn := make(chan struct{}, forksAtOnce)
	var all sync.WaitGroup
	for i := range copies {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			c, err := s.forkOne(work, img)
			if err != nil {
				giveUp(err) // the first cause counts
				return
			}
			copies[i] = c
		})
	}
	all.Wait()
	return copies, context.Cause(work)
}

// forkOne makes a container with the settings of this one. The guest is in the
// image.
func (s *Sandbox) forkOne(ctx context.Context, img image.InspectResponse) (_ *Sandbox, err error) {
	cfg := s.cfg
	cfg.Image, cfg.Name = img.ID, namePrefix+newID()
	cfg.Ports = slices.Clone(cfg.Ports)
	for i := range cfg.Ports {
		cfg.Ports[i].Host = 0
	}
	eng, err := another(s.eng, cfg.Host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, leave(eng))
		}
	}()
	if cfg, err = cfg.openFolders(eng.DaemonHost()); err != nil {
		return nil, exchanged(err)
	}
	defer cfg.folders.close()
	if err := cfg.folders.sameAs(s.cfg.folders); err != nil {
		return nil, err
	}
	var program runnerOpener // nil: it is in the image, or mounted
	put := func(id string) error {
		if program == nil {
			return nil
		}
		return installRunner(ctx, eng, id, program)
	}
	cfg.Logger = logOf(cfg, cfg.Name)
	l, err := launch(ctx, eng, cfg.Name, cfg, img, put)
	// What could be mounted when this sandbox was made may be gone.
	if cfg.sharedRunner != "" && mayBeMounts(err) {
		cfg.sharedRunner, program = "", s.openRunner
		l, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if !cfg.NoSocket && mayBeMounts(err) {
		cfg.NoSocket = true
		l, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if err != nil {
		return nil, explain(eng, err)
	}
	l.arch = img.Architecture
	c := newSandbox(eng, cfg.Name, l, cfg)
	c.forkedFrom, c.volumes = img.ID, cfg.imageVolumes(img)
	return c, nil
}

// openRunner opens the runner that the sandbox has, of which there may be no other any
// more: what is mounted stays when its file is removed. Where the guest cannot be
// asked, for example because it is frozen, the file of this machine must do.
func (s *Sandbox) openRunner(ctx context.Context) (*runnerFile, error) {
	info, err := s.Stat(ctx, guestProgram)
	if err == nil {
		var r io.ReadCloser
		if r, err = s.Open(ctx, guestProgram); err == nil {
			return &runnerFile{r, info.Size}, nil
		}
	}
	f, ferr := openRunnerFile(s.cfg.Runner)
	if ferr != nil {
		return nil, fmt.Errorf("resume the sandbox, or put its runner back to where it was: %w", errors.Join(ferr, err))
	}
	return f, nil
}

// dropForkImage is for a sandbox that has ended.
func (s *Sandbox) dropForkImage(ctx context.Context) error {
	if s.forkedFrom == "" {
		return nil
	}
	return dropImage(ctx, s.eng, s.forkedFrom)
}
