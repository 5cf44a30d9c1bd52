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
	// forkLife is how long Modal keeps the image that forks start from: longer than any fork
	// lives.
	forkLife = maxTimeout + time.Hour
)

// Snapshot creates an image of the sandbox's files and returns its ID. Create with that ID as
// Spec.Image makes a sandbox with these files and the same Paths; all its other settings are
// its own. Modal keeps the image until [Provider.RemoveSnapshot]. Volumes are not in it: a
// sandbox with a Workspace on a volume returns errors.ErrUnsupported.
//
// Memory and processes are not in it either. Modal cannot store them while a command runs in
// the sandbox that was started after the sandbox, and the guest is one.
func (d *driver) Snapshot(ctx context.Context) (string, error) {
	image, err := d.snapshot(ctx, sdk.NoExpiryTTL)
	if err != nil {
		return "", err
	}
	return image.ImageID, nil
}

// copyable returns why the sandbox's files cannot be put into an image, or nil.
func (d *driver) copyable() error {
	switch {
	case d.recordErr != nil:
		return d.recordErr
	case d.cfg.onVolume():
		return fmt.Errorf("%w: the workspace is on a volume, which an image does not hold; choose another workspace", errors.ErrUnsupported)
	}
	return nil
}

// snapshot creates an image of the sandbox. Modal deletes the image after life.
func (d *driver) snapshot(ctx context.Context, life time.Duration) (*sdk.Image, error) {
	if err := d.copyable(); err != nil {
		return nil, err
	}
	// Modal finishes a snapshot even if the caller gives up. Wait for the answer, so that no
	// image is left behind.
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

// explain adds the cause of the sandbox's end, if it has ended, to an error of a call.
func (d *driver) explain(err error) error {
	if cause := d.sandbox.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return explain(err)
}

// dropImage removes an image, even if ctx is done.
func dropImage(ctx context.Context, c *client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err := c.Images.Delete(ctx, id, nil)
	if isNotFound(err) {
		return nil
	}
	return explain(err)
}

// RemoveSnapshot removes a snapshot. A snapshot that does not exist is fs.ErrNotExist.
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

// frozen is an image of a sandbox from which copies are made. The copies have the same Paths,
// and share the sandbox's volumes.
type frozen struct {
	*driver
	image string
}

// Freeze implements guest.Copier. For sandboxes that cannot be copied see Snapshot.
func (d *driver) Freeze(ctx context.Context) (guest.Frozen, error) {
	image, err := d.snapshot(ctx, forkLife)
	if err != nil {
		return nil, err
	}
	return &frozen{d, image.ImageID}, nil
}

// Copy creates a sandbox from the image.
func (f *frozen) Copy(ctx context.Context) (*guest.Sandbox, error) {
	cfg := f.cfg
	cfg.Image, cfg.Dockerfile, cfg.Name = f.image, nil, ""
	if err := cfg.findRunner(ctx); err != nil { // unset after Attach
		return nil, err
	}
	return create(ctx, cfg)
}

// Drop removes the image.
func (f *frozen) Drop(ctx context.Context) error { return dropImage(ctx, f.client, f.image) }
