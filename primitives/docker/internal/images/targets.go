package images

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/hostfile"
)

// CheckTargets refuses an image in which a symbolic link would make the engine create the mount
// point of one target inside another one, which may be the machine's, or inside own. It also
// refuses an image with a volume there. The engine follows the image's links and creates missing
// mount points whenever it touches a container with mounts. So CheckTargets uses a container of the
// image without mounts that was never started.
func CheckTargets(ctx context.Context, eng *client.Client, container string, img image.InspectResponse, own string, targets []string) error {
	for _, target := range targets {
		if _, err := checkWay(ctx, eng, container, target, own, targets); err != nil {
			return err
		}
	}
	return checkVolumes(ctx, eng, container, img, own, targets)
}

// checkVolumes refuses an image with a volume in a mounted folder, where the engine would create
// its mount point. A volume exactly at a target is replaced by what is mounted there.
func checkVolumes(ctx context.Context, eng *client.Client, id string, img image.InspectResponse, own string, targets []string) error {
	if img.Config == nil {
		return nil
	}
	for volume := range img.Config.Volumes {
		volume = path.Join("/", volume)
		if slices.Contains(targets, volume) {
			continue
		}
		at, err := checkWay(ctx, eng, id, volume, own, targets)
		if err != nil {
			return err
		}
		for _, t := range targets {
			if hostfile.Within(at, t) {
				return fmt.Errorf("%w: image: the engine would make a folder for its VOLUME %s in what is mounted at %s; mount something there, or choose an image without that VOLUME",
					fs.ErrInvalid, volume, t)
			}
		}
	}
	return nil
}

// checkWay follows the links of an image to a target, and refuses links into another target or into
// own. It returns the path to which they lead.
func checkWay(ctx context.Context, eng *client.Client, id, target, own string, targets []string) (string, error) {
	at := "/"
	parts := strings.Split(strings.TrimPrefix(target, "/"), "/")
	for i, part := range parts {
		at = path.Join(at, part)
		found, err := eng.ContainerStatPath(ctx, id, at)
		if cerrdefs.IsNotFound(err) || cerrdefs.IsInternal(err) && ctx.Err() == nil {
			// The engine creates the rest, or fails below a file or in a loop of links.
			return path.Join(at, path.Join(parts[i+1:]...)), nil
		}
		if err != nil {
			return "", err
		}
		if found.Mode&fs.ModeSymlink == 0 {
			continue
		}
		to := path.Join("/", found.LinkTarget)
		if hostfile.Within(at, own) || hostfile.Within(to, own) || slices.ContainsFunc(targets, func(t string) bool { return t != target && hostfile.Within(to, t) }) {
			return "", fmt.Errorf("%w: image: its symbolic link %s leads to %s, so that the engine would write into the folder that is mounted there; choose an image without that link", fs.ErrInvalid, at, to)
		}
		at = to
	}
	return at, nil
}

// maxProofs bounds the keys of Proofs. A full set is emptied.
const maxProofs = 256

// Proofs is a set of bounded size. The zero value is empty. It is safe for concurrent use.
type Proofs struct {
	mu   sync.Mutex
	keys map[string]bool
}

// Has reports whether the set has a key.
func (p *Proofs) Has(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

// Add adds a key. If the set is full, Add first removes all other keys.
func (p *Proofs) Add(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil || len(p.keys) >= maxProofs {
		p.keys = map[string]bool{}
	}
	p.keys[key] = true
}
