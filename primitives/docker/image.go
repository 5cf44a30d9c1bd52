package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
)

// checkImage refuses an image that would change folders of the machine, or whose labels are false.
func checkImage(ctx context.Context, eng *client.Client, cfg config, img image.InspectResponse) error {
	if err := checkLabels(ctx, eng, img); err != nil {
		return err
	}
	key := img.ID + "\x00" + strings.Join(cfg.folders.targets(), "\x00")
	if provenImages.Has(key) {
		return nil
	}
	if err := checkLinks(ctx, eng, cfg, img); err != nil {
		return err
	}
	provenImages.Add(key)
	return nil
}

// provenImages holds the IDs of images that checkLinks has accepted, with the targets. The content
// of an ID never changes. The images of forks are not in it: each is checked once.
var provenImages images.Proofs

// checkLinks refuses an image that would change a folder of the machine, see
// images.CheckTargets.
func checkLinks(ctx context.Context, eng *client.Client, cfg config, img image.InspectResponse) (err error) {
	if cfg.folders.empty() {
		return nil
	}
	name := namePrefix + newID()
	inside := containerConfig(name, config{Spec: primitives.Spec{Image: img.ID, Labels: cfg.Labels, Session: cfg.Session}}, img)
	made, err := createWhole(ctx, eng, func(ctx context.Context) (container.CreateResponse, error) {
		return eng.ContainerCreate(ctx, inside, &container.HostConfig{NetworkMode: "none"}, nil, cfg.ociPlatform(), name)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeContainer(ctx, eng, made.ID)) }()
	return images.CheckTargets(ctx, eng, made.ID, img, guestDir, cfg.folders.targets())
}

// wantedImage returns the argument of images.Ensure.
func (c config) wantedImage() images.Wanted {
	return images.Wanted{Ref: c.Image, Platform: c.Platform, Pull: string(c.Pull), Progress: c.Progress}
}

// checkLabels refuses an image whose labels claim that it was made of a sandbox, unless this
// engine has a snapshot of that name and the image consists of its layers, or is built on
// them. The labels of other images could name any folder as the sandbox's own.
func checkLabels(ctx context.Context, eng *client.Client, img image.InspectResponse) error {
	if img.Config == nil {
		return nil
	}
	labels := img.Config.Labels
	name := labels[labelSnapshot]
	if name == "" && labels[labelFolder] == "" && labels[labelFork] == "" {
		return nil
	}
	advice := "use another one"
	if strings.HasPrefix(name, snapshotRepository+":") && labels[labelFork] == "" {
		known, err := eng.ImageInspect(ctx, name)
		switch {
		case err != nil && !cerrdefs.IsNotFound(err):
			return err
		case err == nil && isBuiltOn(img, known):
			return nil
		}
		advice = "if you trust it, give it the name that it had: docker tag IMAGE " + name
	}
	return fmt.Errorf("%w: image: its labels say that it was made of a sandbox, but it is no snapshot that this engine has; %s", fs.ErrInvalid, advice)
}

// isBuiltOn reports whether an image is the snapshot, or has its layers and more.
func isBuiltOn(img, snapshot image.InspectResponse) bool {
	n := len(snapshot.RootFS.Layers)
	return snapshot.Config != nil && n > 0 && len(img.RootFS.Layers) >= n && slices.Equal(img.RootFS.Layers[:n], snapshot.RootFS.Layers) &&
		snapshot.Config.Labels[labelSnapshot] == img.Config.Labels[labelSnapshot] && snapshot.Config.Labels[labelFolder] == img.Config.Labels[labelFolder]
}

// targets returns the paths in the container at which something is mounted.
func (f *hostFolders) targets() []string {
	list := []string{guestProgram, guestRoot, linkDir}
	for _, m := range f.described() {
		list = append(list, m.Target)
	}
	return list
}
