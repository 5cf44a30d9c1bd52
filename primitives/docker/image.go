package docker

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// ensureImage returns the image, and fetches it first if the policy says so.
func ensureImage(ctx context.Context, eng *client.Client, cfg Config) (image.InspectResponse, error) {
	if cfg.Pull == PullAlways {
		if err := pull(ctx, eng, cfg); err != nil {
			return image.InspectResponse{}, err
		}
	}
	img, err := eng.ImageInspect(ctx, cfg.Image)
	switch {
	case cerrdefs.IsNotFound(err) && cfg.Pull == PullNever:
		return img, fmt.Errorf("fetch or build the image first, or set pull to missing: %w", err)
	case cerrdefs.IsNotFound(err) && cfg.Pull != PullAlways:
		if err = pull(ctx, eng, cfg); err == nil {
			img, err = eng.ImageInspect(ctx, cfg.Image)
		}
	}
	if err != nil {
		return img, err
	}
	if img.Os != "linux" {
		return img, fmt.Errorf("%w: the image is for %s; sandboxes need one for linux", errors.ErrUnsupported, img.Os)
	}
	want, _ := cfg.platform() // was checked
	if want[1] != "" && want[1] != img.Architecture {
		return img, fmt.Errorf("%w: the engine has the image for %s/%s only; set pull to always to fetch it for %s", errors.ErrUnsupported, img.Os, img.Architecture, cfg.Platform)
	}
	return img, nil
}
