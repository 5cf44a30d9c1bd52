package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
)

// The labels of images that were built.
const (
	labelImage     = labelPrefix + "image"      // the name and tag that BuildImage gave it
	labelImageBase = labelPrefix + "image.base" // Spec.Image
)

// findBuilt returns the image that buildImage would build, if the engine has it;
// else the error is fs.ErrNotExist. The base is fetched first if Pull says so.
func (c config) findBuilt(ctx context.Context) (primitives.Image, error) {
	var found primitives.Image
	err := c.askAbout("find image", c.Install.Name, func(eng *client.Client) error {
		plan, err := planBuild(ctx, eng, c)
		if err != nil {
			return err
		}
		found, err = findImage(ctx, eng, plan.ref)
		return err
	})
	return found, err
}

// buildImage installs c.Install on c.Image, unless the engine has the very image
// already: its tag is the digest of the base's ID and of the installation. Of programs that
// want the same image at once one builds it. Progress gets what the commands print,
// line by line.
//
// The commands run in a sandbox of their own, whose files become the image, but for those
// in their HOME. It has the
// network, the limits and the filter of system calls of c, never gains privileges and
// has the few capabilities that package managers need. Name, User, Env, the workspace,
// Mounts, ports, CapAdd, Labels, ReadOnly and Keep do not count. ONBUILD
// instructions of the base are not carried out.
//
// A command that fails is a [*BuildError]. When buildImage fails or ctx ends nothing is
// left of the build; that of a program that dies ends like any sandbox.
func (c config) buildImage(ctx context.Context) (primitives.Image, error) {
	var built primitives.Image
	err := c.askAbout("build image", c.Install.Name, func(eng *client.Client) error {
		plan, err := planBuild(ctx, eng, c)
		if err != nil {
			return err
		}
		built, err = ensureBuilt(ctx, eng, c, plan)
		return err
	})
	return built, err
}

// ensureBuilt builds the image unless it is there; others that want it wait.
func ensureBuilt(ctx context.Context, eng *client.Client, cfg config, plan buildPlan) (primitives.Image, error) {
	found, err := findImage(ctx, eng, plan.ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	lock, err := buildLock(plan.ref)
	if err != nil {
		return primitives.Image{}, err
	}
	unlock, err := flock.Lock(ctx, lock, func() {
		cfg.tell("waiting for another program that builds the image " + plan.ref)
	})
	if err != nil {
		return primitives.Image{}, err
	}
	defer unlock()
	found, err = findImage(ctx, eng, plan.ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	cfg.tell("building the image " + plan.ref + " on " + cfg.Image)
	return build(ctx, eng, cfg, plan)
}

// tell passes on what takes long.
func (c config) tell(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
}

// buildLock is the file that is locked while an image is built.
func buildLock(ref string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("set HOME or XDG_CACHE_HOME: %w", err)
	}
	dir := filepath.Join(cache, "agentenv", "images")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the cache folder one that can be written, or name another in XDG_CACHE_HOME: %w", err)
	}
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(dir, "lock-"+hex.EncodeToString(sum[:8])), nil
}

// buildPlan is a build whose base is known.
type buildPlan struct {
	primitives.Install
	ref  string
	on   string // Spec.Image
	base image.InspectResponse
}

func planBuild(ctx context.Context, eng *client.Client, cfg config) (buildPlan, error) {
	b := cfg.Install
	if err := checkImageName(b.Name); err != nil {
		return buildPlan{}, err
	}
	base, err := images.Ensure(ctx, eng, cfg.wantedImage())
	if err != nil {
		return buildPlan{}, err
	}
	made, err := json.Marshal([]any{base.ID, b.Labels, b.Commands})
	if err != nil {
		return buildPlan{}, err
	}
	digest := sha256.Sum256(made)
	return buildPlan{b, b.Name + ":" + hex.EncodeToString(digest[:8]), cfg.Image, base}, nil
}

// checkImageName refuses what an image cannot be called.
func checkImageName(name string) error {
	for i, r := range name {
		lower := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		if !lower && (i == 0 || !strings.ContainsRune("._-/", r)) {
			return config{}.invalid("name", fmt.Sprintf("%q is no name of an image; use small letters, digits, and . _ - / after the first one", name))
		}
	}
	if name == "" {
		return config{}.invalid("name", "it is empty; name the image")
	}
	return nil
}

// findImage returns an image that was built, by its name and tag.
func findImage(ctx context.Context, eng *client.Client, ref string) (primitives.Image, error) {
	found, err := eng.ImageInspect(ctx, ref)
	if err != nil {
		return primitives.Image{}, engine.Explain(eng, err)
	}
	if found.Config == nil || found.Config.Labels[labelImage] != ref {
		return primitives.Image{}, fmt.Errorf("%w: rename the image %s, whose name is taken", fs.ErrExist, ref)
	}
	created, _ := time.Parse(time.RFC3339Nano, found.Created) // the zero time if the engine does not tell
	return primitives.Image{
		Ref: ref, ID: found.ID, Base: found.Config.Labels[labelImageBase], Labels: found.Config.Labels,
		Size: found.Size, Created: created.UTC(),
	}, nil
}

// Images returns the images that [Provider.BuildImage] has made and that still have their
// name, oldest first.
func (p Provider) Images(ctx context.Context) ([]primitives.Image, error) {
	var list []primitives.Image
	err := p.ask("list images", func(eng *client.Client) error {
		var err error
		list, err = listImages(ctx, eng)
		return err
	})
	return list, err
}

// RemoveImage removes an image that [Provider.BuildImage] made, by its Ref. Another image is fs.ErrNotExist, and one of which there are
// containers is fs.ErrExist.
func (p Provider) RemoveImage(ctx context.Context, ref string) error {
	return p.askAbout("remove image", ref, func(eng *client.Client) error {
		img, err := eng.ImageInspect(ctx, ref)
		if err != nil {
			return err
		}
		if img.Config == nil || img.Config.Labels[labelImage] != ref {
			return fmt.Errorf("%w: the image was not built for sandboxes", fs.ErrNotExist)
		}
		_, err = eng.ImageRemove(ctx, ref, image.RemoveOptions{})
		if cerrdefs.IsConflict(err) {
			return fmt.Errorf("remove the sandboxes that were made of it first: %w", err)
		}
		return err
	})
}
