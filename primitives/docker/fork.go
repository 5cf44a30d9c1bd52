package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
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
	id, err := makeContainer(ctx, eng, cfg.Name, cfg, img)
	if err != nil {
		return nil, explain(eng, err)
	}
	l, err := runContainer(ctx, eng, id, cfg.Name, cfg)
	if err != nil {
		return nil, errors.Join(explain(eng, err), removeContainer(ctx, eng, id), dropLink(eng, cfg.Name))
	}
	l.arch = img.Architecture
	c := newSandbox(eng, cfg.Name, l, cfg)
	c.forkedFrom = img.ID
	return c, nil
}

// dropForkImage is for a sandbox that has ended.
func (s *Sandbox) dropForkImage(ctx context.Context) error {
	if s.forkedFrom == "" {
		return nil
	}
	return dropImage(ctx, s.eng, s.forkedFrom)
}

// forkImages removes the images of forks that nobody uses any more.
func (g *collector) forkImages(ctx context.Context) {
	found, err := g.eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelFork), filters.Arg("dangling", "true"))})
	if err != nil {
		g.errs = append(g.errs, err)
		return
	}
	for _, i := range found {
		if i.Labels[labelFork] != "" {
			g.forkImage(ctx, i)
		}
	}
}

func (g *collector) forkImage(ctx context.Context, i image.Summary) {
	if findOwner(i.Labels) == ownerAlive {
		return
	}
	using, err := g.eng.ContainerList(ctx, container.ListOptions{All: true, Limit: 1, Filters: filters.NewArgs(filters.Arg("ancestor", i.ID))})
	if err != nil {
		g.errs = append(g.errs, err)
		return
	}
	if len(using) > 0 {
		return
	}
	created := time.Unix(i.Created, 0).UTC()
	why, err := g.unused(ctx, findOwner(i.Labels), created, "no fork is left that uses it")
	if err != nil {
		g.errs = append(g.errs, err)
	}
	if why != "" {
		g.take(Garbage{"image", i.ID, why, created}, func() error {
			if _, err := g.eng.ImageRemove(ctx, i.ID, image.RemoveOptions{}); err != nil {
				return err
			}
			return dropImage(ctx, g.eng, i.ParentID)
		})
	}
}
