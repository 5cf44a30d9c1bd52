package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

// The labels of images that were built.
const (
	labelImage     = labelPrefix + "image"      // the name and tag that BuildImage gave it
	labelImageBase = labelPrefix + "image.base" // Config.Image
	labelBuild     = labelPrefix + "build"      // one run of BuildImage, with all that is left if it fails
)

// Build says how [BuildImage] makes an image from [Config].Image.
type Build struct {
	// Name is the image's name. It has no tag: that is made from what the image
	// is built of.
	Name string
	// Instructions are lines of a Dockerfile without FROM. They are carried out as
	// root; the image keeps the user that its base has. There are no files that
	// COPY could find.
	Instructions string
	// Labels are added to the image and so to its containers.
	Labels map[string]string
	// Args are values for ARG. Those of proxies, such as HTTP_PROXY, need no ARG
	// and are not kept in the image.
	Args map[string]string
}

// Image is an image that [BuildImage] made.
type Image struct {
	Ref     string // its name and tag, for Config.Image
	ID      string
	Base    string // what it was built on, as Config.Image named it
	Labels  map[string]string
	Size    int64 // in bytes, with that of its base
	Created time.Time
	InUse   bool // there is a container of it
}

// FindImage returns the image that [BuildImage] would build, if the engine has it;
// else the error is fs.ErrNotExist. The base is fetched first if cfg.Pull says so.
func FindImage(ctx context.Context, cfg Config, b Build) (Image, error) {
	var found Image
	err := askAbout("find image", b.Name, cfg, func(eng *client.Client) error {
		plan, err := planBuild(ctx, eng, cfg, b)
		if err != nil {
			return err
		}
		found, err = findImage(ctx, eng, plan.ref)
		return err
	})
	return found, err
}

// BuildImage builds an image on cfg.Image, unless the engine has the very image
// already: its tag is the digest of the base's ID and of b. Of programs that want
// the same image at once one builds it. cfg.Progress gets what the engine prints,
// line by line. Of cfg only Host, Image, Pull, Platform and Progress count.
//
// An instruction that fails is a [*BuildError]. When BuildImage fails or ctx ends
// nothing is left of the build.
func BuildImage(ctx context.Context, cfg Config, b Build) (Image, error) {
	var built Image
	err := askAbout("build image", b.Name, cfg, func(eng *client.Client) error {
		plan, err := planBuild(ctx, eng, cfg, b)
		if err != nil {
			return err
		}
		built, err = ensureBuilt(ctx, eng, cfg, plan)
		return err
	})
	return built, err
}

// ensureBuilt builds the image unless it is there; others that want it wait.
func ensureBuilt(ctx context.Context, eng *client.Client, cfg Config, plan buildPlan) (Image, error) {
	found, err := findImage(ctx, eng, plan.ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	lock, err := buildLock(plan.ref)
	if err != nil {
		return Image{}, err
	}
	unlock, err := flock.Lock(ctx, lock, func() {
		cfg.tell("waiting for another program that builds the image " + plan.ref)
	})
	if err != nil {
		return Image{}, err
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
func (c Config) tell(message string) {
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
	ref        string
	dockerfile func(labels map[string]string) string
	args       map[string]*string
	labels     map[string]string
}

func planBuild(ctx context.Context, eng *client.Client, cfg Config, b Build) (buildPlan, error) {
	if err := b.check(); err != nil {
		return buildPlan{}, err
	}
	base, err := ensureImage(ctx, eng, cfg)
	if err != nil {
		return buildPlan{}, err
	}
	user := ""
	if base.Config != nil {
		user = base.Config.User
	}
	p := buildPlan{args: make(map[string]*string, len(b.Args)), labels: maps.Clone(b.Labels)}
	for key, value := range b.Args {
		p.args[key] = &value
	}
	p.dockerfile = func(labels map[string]string) string {
		lines := []string{"FROM " + base.ID, labelLine(labels), "USER 0", strings.TrimSpace(b.Instructions)}
		if user != "" {
			lines = append(lines, "USER "+user)
		}
		return strings.Join(lines, "\n") + "\n"
	}
	// Proxies lead to the same image; other arguments may not.
	digest := sha256.New()
	_, _ = digest.Write([]byte(p.dockerfile(b.Labels))) // never fails
	for _, key := range slices.Sorted(maps.Keys(b.Args)) {
		if !isProxy(key) {
			_, _ = fmt.Fprintf(digest, "%s=%s\n", key, b.Args[key])
		}
	}
	p.ref = b.Name + ":" + hex.EncodeToString(digest.Sum(nil)[:8])
	if p.labels == nil {
		p.labels = make(map[string]string)
	}
	p.labels[labelImage], p.labels[labelImageBase] = p.ref, cfg.Image
	return p, nil
}

func (b Build) check() error {
	c := Config{}
	for i, r := range b.Name {
		lower := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		if !lower && (i == 0 || !strings.ContainsRune("._-/", r)) {
			return c.invalid("name", "use small letters, digits, and . _ - / after the first one")
		}
	}
	if b.Name == "" {
		return c.invalid("name", "name the image")
	}
	for line := range strings.Lines(b.Instructions) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.EqualFold(word, "FROM") {
			return c.invalid("instructions", "remove FROM: the base is the image of the configuration")
		}
	}
	for key, value := range b.Labels {
		if key == "" || strings.ContainsAny(key+value, "\r\n\x00") {
			return c.invalid("labels", fmt.Sprintf("remove the line break from %q", key))
		}
	}
	return nil
}

// isProxy reports whether the engine knows a build argument as one of a proxy.
func isProxy(key string) bool {
	return slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}, strings.ToUpper(key))
}

// labelLine is the instruction that sets labels. It takes back what those of the
// base say that is not true of the image: the base may be a snapshot.
func labelLine(labels map[string]string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace
	line := "LABEL"
	for _, other := range []string{labelSandbox, labelConfig, labelSnapshot, labelFork} {
		line += " " + other + `=""`
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		line += ` "` + quote(key) + `"="` + quote(labels[key]) + `"`
	}
	return line
}

// findImage returns an image that was built, by its name and tag.
func findImage(ctx context.Context, eng *client.Client, ref string) (Image, error) {
	found, err := eng.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, explain(eng, err)
	}
	if found.Config == nil || found.Config.Labels[labelImage] != ref {
		return Image{}, fmt.Errorf("%w: rename the image %s, whose name is taken", fs.ErrExist, ref)
	}
	created, _ := time.Parse(time.RFC3339Nano, found.Created) // the zero time if the engine does not tell
	return Image{
		Ref: ref, ID: found.ID, Base: found.Config.Labels[labelImageBase], Labels: found.Config.Labels,
		Size: found.Size, Created: created.UTC(),
	}, nil
}

// Images returns the images that [BuildImage] has made and that still have their
// name, oldest first. Of cfg only Host counts.
func Images(ctx context.Context, cfg Config) ([]Image, error) {
	var list []Image
	err := ask("list images", cfg, func(eng *client.Client) error {
		var err error
		list, err = listImages(ctx, eng)
		return err
	})
	return list, err
}

// RemoveImage removes an image that [BuildImage] made, by its Ref. Of cfg only
// Host counts. Another image is fs.ErrNotExist, and one of which there are
// containers is fs.ErrExist.
func RemoveImage(ctx context.Context, cfg Config, ref string) error {
	return askAbout("remove image", ref, cfg, func(eng *client.Client) error {
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
		if err != nil {
			return err
		}
		// The engine would go on to the base, if that has no name.
		return dropImages(ctx, eng, img.Parent, isOfBuild(img.Config.Labels[labelBuild])) //nolint:staticcheck // engines that have no parents say none
	})
}
