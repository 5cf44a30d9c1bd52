package images

import (
	"context"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

// removeTimeout is how long the engine may take to remove an image.
const removeTimeout = time.Minute

// Remove removes an unused image, even if ctx is done. A missing image is no error.
func Remove(ctx context.Context, eng *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	err := RemoveUnused(ctx, eng, id)
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return engine.Explain(eng, err)
}

// RemoveUnused removes an image that nothing uses. Some engines, such as 20.10, return an internal
// error if another program removes the image at the same time.
func RemoveUnused(ctx context.Context, eng *client.Client, id string) error {
	_, err := eng.ImageRemove(ctx, id, image.RemoveOptions{})
	if cerrdefs.IsInternal(err) {
		if _, ierr := eng.ImageInspect(ctx, id); cerrdefs.IsNotFound(ierr) {
			return ierr
		}
	}
	return err
}

// RemoveChain removes an image and the images that it was made of, while they have no name, ours
// accepts their labels and nothing else uses them. The engine's own pruning would go on to their
// base, which may be a user's image. RemoveChain works even if ctx is done.
func RemoveChain(ctx context.Context, eng *client.Client, id string, ours func(labels map[string]string) bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	for id != "" {
		img, err := eng.ImageInspect(ctx, id)
		if cerrdefs.IsInternal(err) {
			img, err = eng.ImageInspect(ctx, id) // see RemoveUnused
		}
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return engine.Explain(eng, err)
		}
		if img.Config == nil || !ours(img.Config.Labels) || len(img.RepoTags) > 0 {
			return nil
		}
		err = RemoveUnused(ctx, eng, img.ID)
		switch {
		case cerrdefs.IsConflict(err):
			return nil // its last user removes it
		case err != nil && !cerrdefs.IsNotFound(err):
			return engine.Explain(eng, err)
		}
		id = img.Parent //nolint:staticcheck // engines that have no parents say none
	}
	return nil
}
