package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// snapshotTimeout is how long Modal may take for a snapshot.
	snapshotTimeout = 10 * time.Minute
	// forkLife is how long an image lives that forks are made of: longer than any
	// of them.
	forkLife = maxTimeout + time.Hour
	// forksAtOnce bounds how many sandboxes are made at the same time.
	forksAtOnce = 8
)

// Snapshot implements primitives.Snapshotter: it makes an image of the sandbox's
// files and returns its ID. [New] with that as Config.Image makes a sandbox with
// these files and the same Paths; all its other settings are those of its own
// Config. See [RemoveSnapshot]; until then Modal keeps it. Volumes are not in it: a
// sandbox with a Workspace on one is errors.ErrUnsupported.
//
// Nor are the memory and the processes: Modal cannot store those of a sandbox while a
// command runs in it that was started later, which the guest is.
func (s *Sandbox) Snapshot(ctx context.Context) (string, error) {
	image, err := s.snapshot(ctx, sdk.NoExpiryTTL)
	if err != nil {
		return "", wrap("snapshot", s.ID(), err)
	}
	return image.ImageID, nil
}

// copyable says why the sandbox's files cannot be put into an image, or nil.
func (s *Sandbox) copyable() error {
	switch {
	case s.strange != nil:
		return s.strange
	case s.cfg.onVolume():
		return fmt.Errorf("%w: choose a workspace that is not on a volume, which an image does not hold", errors.ErrUnsupported)
	}
	return nil
}

// snapshot makes an image of the sandbox that lives so long.
func (s *Sandbox) snapshot(ctx context.Context, life time.Duration) (*sdk.Image, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	if err := s.copyable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// Modal does not stop when it is no longer listened to: so that nothing is left
	// behind, its answer is waited for.
	patient, cancel := outlast(ctx, endTimeout)
	defer cancel()
	image, err := s.box.SnapshotFilesystem(patient, &sdk.SandboxSnapshotFilesystemParams{Timeout: snapshotTimeout, TTL: life})
	if err != nil {
		return nil, errors.Join(ctx.Err(), s.explain(err))
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, dropImage(ctx, s.client, image.ImageID))
	}
	return image, nil
}

// explain prefers why the sandbox has ended to what Modal says about a call.
func (s *Sandbox) explain(err error) error {
	if cause := s.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return explain(err)
}

// outlast returns a context that is done only some time after ctx.
func outlast(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(more)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-patient.Done():
		}
	})
	return patient, func() {
		stop()
		cancel()
	}
}

// dropImage removes an image, also when ctx is done.
func dropImage(ctx context.Context, c *client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err := c.Images.Delete(ctx, id, nil)
	if isNotFound(err) {
		return nil
	}
	return explain(err)
}

// RemoveSnapshot removes a snapshot. Of cfg only Environment and Profile count. One
// that does not exist is fs.ErrNotExist.
func RemoveSnapshot(ctx context.Context, cfg Config, id string) error {
	return wrap("remove", id, removeSnapshot(ctx, cfg, id))
}

func removeSnapshot(ctx context.Context, cfg Config, id string) error {
	if !validName(id) {
		return fmt.Errorf("%w: no snapshot can have this ID", fs.ErrNotExist)
	}
	c, err := connect(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return explain(c.Images.Delete(ctx, id, nil))
}

// Fork implements primitives.Forker: the copies are sandboxes of one image that this
// one is snapshotted to. They have the same Paths. Volumes are shared, as they are
// by all sandboxes that have them. For what cannot be copied see [Sandbox.Snapshot].
func (s *Sandbox) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	copies, err := s.fork(ctx, n)
	if err != nil {
		return nil, wrap("fork", s.ID(), err)
	}
	return copies, nil
}

func (s *Sandbox) fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: ask for at least one copy, not %d", fs.ErrInvalid, n)
	}
	image, err := s.snapshot(ctx, forkLife)
	if err != nil {
		return nil, err
	}
	copies, err := s.forks(ctx, n, image.ImageID)
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
	return nil, errors.Join(append(errs, dropImage(ctx, s.client, image.ImageID))...)
}

// forks makes the sandboxes. When one fails the others are given up; those that were
// made are returned, too.
func (s *Sandbox) forks(ctx context.Context, n int, image string) ([]primitives.EnvironmentPrimitive, error) {
	cfg := s.cfg
	cfg.Image, cfg.Dockerfile, cfg.Name = image, nil, ""
	work, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	copies := make([]primitives.EnvironmentPrimitive, n)
	turn := make(chan struct{}, forksAtOnce)
	var all sync.WaitGroup
	for i := range copies {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			c, err := create(work, cfg)
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
