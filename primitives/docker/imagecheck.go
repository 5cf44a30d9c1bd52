package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// checkImage refuses an image that would change the machine's folders, or lies.
func checkImage(ctx context.Context, eng *client.Client, cfg Config, img image.InspectResponse) error {
	if err := checkLabels(ctx, eng, img); err != nil {
		return err
	}
	key := img.ID + "\x00" + strings.Join(cfg.folders.targets(), "\x00")
	if provenImages.has(key) {
		return nil
	}
	if err := checkLinks(ctx, eng, cfg, img); err != nil {
		return err
	}
	provenImages.add(key)
	return nil
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

// isBuiltOn reports whether an image is a snapshot, or has more layers than it only.
func isBuiltOn(img, snapshot image.InspectResponse) bool {
	n := len(snapshot.RootFS.Layers)
	return snapshot.Config != nil && n > 0 && len(img.RootFS.Layers) >= n && slices.Equal(img.RootFS.Layers[:n], snapshot.RootFS.Layers) &&
		snapshot.Config.Labels[labelSnapshot] == img.Config.Labels[labelSnapshot] && snapshot.Config.Labels[labelFolder] == img.Config.Labels[labelFolder]
}

// provenImages holds the IDs of images that checkLinks has passed, with the targets. The
// content of an ID never changes. The images of forks are not in it: each is checked once.
var provenImages proofs

// maxProofs bounds what proofs remember. Then they begin anew.
const maxProofs = 256

// proofs are a set of bounded size. The zero value is empty.
type proofs struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (p *proofs) has(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

func (p *proofs) add(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil || len(p.keys) >= maxProofs {
		p.keys = map[string]bool{}
	}
	p.keys[key] = true
}

// targets are the paths in the container at which something is mounted.
func (f *hostFolders) targets() []string {
	list := []string{guestProgram, guestRoot, linkDir}
	for _, m := range f.described() {
		list = append(list, m.Target)
	}
	return list
}

// checkLinks refuses an image in which a symbolic link would make the engine create the
// mount point of one folder inside another one, which may be the machine's, and one with a
// volume there. The engine follows the image's links and creates missing mount points
// whenever it touches a container with mounts. So checkLinks looks at a container without
// mounts that is never started.
func checkLinks(ctx context.Context, eng *client.Client, cfg Config, img image.InspectResponse) (err error) {
	if cfg.folders.empty() {
		return nil
	}
	targets := cfg.folders.targets()
	name := namePrefix + newID()
	inside := containerConfig(name, Config{Image: img.ID, Labels: cfg.Labels, Session: cfg.Session}, img)
	made, err := createWhole(ctx, eng, func(ctx context.Context) (container.CreateResponse, error) {
		return eng.ContainerCreate(ctx, inside, &container.HostConfig{NetworkMode: "none"}, nil, cfg.ociPlatform(), name)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeContainer(ctx, eng, made.ID)) }()
	for _, target := range targets {
		if _, err := checkWay(ctx, eng, made.ID, target, targets); err != nil {
			return err
		}
	}
	return checkVolumes(ctx, eng, made.ID, img, targets)
}

// checkVolumes refuses an image with a volume in a folder that is mounted, where the engine
// would create its mount point. A volume at a target is replaced by what is mounted there.
func checkVolumes(ctx context.Context, eng *client.Client, id string, img image.InspectResponse, targets []string) error {
	if img.Config == nil {
		return nil
	}
	for volume := range img.Config.Volumes {
		volume = path.Join("/", volume)
		if slices.Contains(targets, volume) {
			continue
		}
		at, err := checkWay(ctx, eng, id, volume, targets)
		if err != nil {
			return err
		}
		for _, t := range targets {
			if within(at, t) {
				return fmt.Errorf("%w: image: the engine would make a folder for its VOLUME %s in what is mounted at %s; mount something there, or choose an image without that VOLUME",
					fs.ErrInvalid, volume, t)
			}
		}
	}
	return nil
}

// checkWay follows the links of an image to a target, and refuses those into another one.
// It returns where they lead.
func checkWay(ctx context.Context, eng *client.Client, id, target string, targets []string) (string, error) {
	at := "/"
	parts := strings.Split(strings.TrimPrefix(target, "/"), "/")
	for i, part := range parts {
		at = path.Join(at, part)
		found, err := eng.ContainerStatPath(ctx, id, at)
		if cerrdefs.IsNotFound(err) || cerrdefs.IsInternal(err) && ctx.Err() == nil {
			// The engine makes the rest, or will say that it cannot, below a file or in a circle of links.
			return path.Join(at, path.Join(parts[i+1:]...)), nil
		}
		if err != nil {
			return "", err
		}
		if found.Mode&fs.ModeSymlink == 0 {
			continue
		}
		to := path.Join("/", found.LinkTarget)
		if within(at, guestDir) || within(to, guestDir) || slices.ContainsFunc(targets, func(t string) bool { return t != target && within(to, t) }) {
			return "", fmt.Errorf("%w: image: its symbolic link %s leads to %s, so that the engine would write into the folder that is mounted there; choose an image without that link", fs.ErrInvalid, at, to)
		}
		at = to
	}
	return at, nil
}
