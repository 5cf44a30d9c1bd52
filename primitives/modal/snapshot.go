package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

const (
	// snapshotTimeout is how long Modal may take for a snapshot.
	snapshotTimeout = 10 * time.Minute
	// forkLife is how long an image lives that forks are made of: longer than any
	// of them.
	forkLife = maxTimeout + time.Hour
)

// Snapshot makes an image of the sandbox's files and returns its ID. Create with that as
// Spec.Image makes a sandbox with these files and the same Paths; all its other
// settings are those of its own. See [Provider.RemoveSnapshot]; until then Modal keeps it.
// Volumes are not in it: a sandbox with a Workspace on one is errors.ErrUnsupported.
//
// Nor are the memory and the processes: Modal cannot store those of a sandbox while a
// command runs in it that was started later, which the guest is.
func (d *driver) Snapshot(ctx context.Context) (string, error) {
	image, err := d.snapshot(ctx, sdk.NoExpiryTTL)
	if err != nil {
		return "", err
	}
	return image.ImageID, nil
}

// copyable says why the sandbox's files cannot be put into an image, or nil.
func (d *driver) copyable() error {
	switch {
	case d.strange != nil:
		return d.strange
	case d.cfg.onVolume():
		return fmt.Errorf("%w: the workspace is on a volume, which an image does not hold; choose another workspace", errors.ErrUnsupported)
	}
	return nil
}

// snapshot makes an image of the sandbox that lives so long.
func (d *driver) snapshot(ctx context.Context, life time.Duration) (*sdk.Image, error) {
	if err := d.copyable(); err != nil {
		return nil, err
	}
	// Modal does not stop when it is no longer listened to: so that nothing is left
	// behind, its answer is waited for.
	patient, cancel := patience.Outlast(ctx, endTimeout)
	defer cancel()
	image, err := d.box.SnapshotFilesystem(patient, &sdk.SandboxSnapshotFilesystemParams{Timeout: snapshotTimeout, TTL: life})
	if err != nil {
		return nil, errors.Join(ctx.Err(), d.explain(err))
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, dropImage(ctx, d.client, image.ImageID))
	}
	return image, nil
}

// explain prefers why the sandbox has ended to what Modal says about a call.
func (d *driver) explain(err error) error {
	if cause := d.sandbox.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return explain(err)
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

// RemoveSnapshot removes a snapshot. One
// that does not exist is fs.ErrNotExist.
func (p Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return wrap("remove", id, p.removeSnapshot(ctx, id))
}

func (p Provider) removeSnapshot(ctx context.Context, id string) error {
	if !validName(id) {
		return fmt.Errorf("%w: no snapshot can have this ID", fs.ErrNotExist)
	}
	c, err := connect(p)
	if err != nil {
		return err
	}
	defer c.Close()
	return explain(c.Images.Delete(ctx, id, nil))
}

// frozen is an image of a sandbox that copies are made of. They have the same Paths.
// Volumes are shared, as they are by all sandboxes that have them.
type frozen struct {
	*driver
	image string
}

// Freeze implements guest.Copier. For what cannot be copied see Snapshot.
func (d *driver) Freeze(ctx context.Context) (guest.Frozen, error) {
	image, err := d.snapshot(ctx, forkLife)
	if err != nil {
		return nil, err
	}
	return &frozen{d, image.ImageID}, nil
}

// Copy makes a sandbox of the image.
func (f *frozen) Copy(ctx context.Context) (*guest.Sandbox, error) {
	cfg := f.cfg
	cfg.Image, cfg.Dockerfile, cfg.Name = f.image, nil, ""
	if err := cfg.findRunner(ctx); err != nil { // after Attach
		return nil, err
	}
	return create(ctx, cfg)
}

// Drop removes the image.
func (f *frozen) Drop(ctx context.Context) error { return dropImage(ctx, f.client, f.image) }
