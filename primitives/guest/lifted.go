package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Snapshot implements primitives.Snapshotter, if the driver does.
func (c *Sandbox) Snapshot(ctx context.Context) (string, error) {
	d, ok := c.driver.(primitives.Snapshotter)
	if !ok {
		return "", c.wrap("snapshot", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return "", c.wrap("snapshot", err)
	}
	defer c.rest()()
	id, err := d.Snapshot(ctx)
	return id, c.wrap("snapshot", err)
}

// Pause implements primitives.Pauser, if the driver does.
func (c *Sandbox) Pause(ctx context.Context) error {
	return c.wrap("pause", c.pause(ctx, true))
}

// Resume implements primitives.Pauser, if the driver does. It also resumes a sandbox
// that another handle has paused.
func (c *Sandbox) Resume(ctx context.Context) error {
	return c.wrap("resume", c.pause(ctx, false))
}

func (c *Sandbox) pause(ctx context.Context, paused bool) error {
	d, ok := c.driver.(primitives.Pauser)
	if !ok {
		return errors.ErrUnsupported
	}
	c.pausing.Lock()
	defer c.pausing.Unlock()
	if err := c.usable(ctx); err != nil {
		return err
	}
	before, do := c.isPaused(), d.Resume
	if paused {
		do = d.Pause
		c.setPaused(true) // before the guest falls silent
	}
	if err := do(ctx); err != nil {
		c.setPaused(before)
		return err
	}
	c.setPaused(paused)
	return nil
}

// ReadUsage implements primitives.UsageReader, if the driver does. The backend answers,
// so it works whatever goes on inside.
func (c *Sandbox) ReadUsage(ctx context.Context) (primitives.Usage, error) {
	d, ok := c.driver.(primitives.UsageReader)
	if !ok {
		return primitives.Usage{}, c.wrap("usage", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return primitives.Usage{}, c.wrap("usage", err)
	}
	u, err := d.ReadUsage(ctx)
	return u, c.wrap("usage", err)
}

// Ports implements primitives.PortLister, if the driver does.
func (c *Sandbox) Ports(ctx context.Context) ([]primitives.Port, error) {
	d, ok := c.driver.(primitives.PortLister)
	if !ok {
		return nil, c.wrap("ports", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return nil, c.wrap("ports", err)
	}
	ports, err := d.Ports(ctx)
	return ports, c.wrap("ports", err)
}

// copiesAtOnce bounds how many sandboxes are made at the same time.
const copiesAtOnce = 8

// Fork implements primitives.Forker, if the driver is a [Copier].
func (c *Sandbox) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	copies, err := c.fork(ctx, n)
	if err != nil {
		return nil, c.wrap("fork", err)
	}
	return copies, nil
}

func (c *Sandbox) fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	d, ok := c.driver.(Copier)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: %d copies; ask for at least one", fs.ErrInvalid, n)
	}
	wake := c.rest()
	frozen, err := d.Freeze(ctx)
	wake()
	if err != nil {
		return nil, err
	}
	copies, err := makeCopies(ctx, n, frozen)
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
	return nil, errors.Join(append(errs, frozen.Drop(ctx))...)
}

// makeCopies makes n copies. When one fails the others are given up; those that were made
// are returned, too.
func makeCopies(ctx context.Context, n int, frozen Frozen) ([]primitives.EnvironmentPrimitive, error) {
	work, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	copies := make([]primitives.EnvironmentPrimitive, n)
	turn := make(chan struct{}, copiesAtOnce)
	var all sync.WaitGroup
	for i := range copies {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			c, err := frozen.Copy(work)
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

// Runner returns where in the sandbox a runner lies that is this file of the host. It is
// empty if there is none, or it is not known.
func (c *Sandbox) Runner(file string) string {
	if d, ok := c.driver.(RunnerHolder); ok {
		return d.Runner(file)
	}
	return ""
}
