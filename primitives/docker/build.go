package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
)

// The labels of images that were built.
const (
	labelImage     = labelPrefix + "image"      // the name and tag that BuildImage gave it
	labelImageBase = labelPrefix + "image.base" // Spec.Image
)

// findBuilt returns the image that buildImage would build, if the engine has it; else the error is
// fs.ErrNotExist. It fetches the base first if Pull says so.
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

// buildImage installs c.Install on c.Image, unless the engine already has that image: its tag is
// the digest of the base's ID and of the installation. If several programs want the same image at
// once, one of them builds it. Progress gets the output of the commands line by line.
//
// The commands run in a sandbox of their own. Its files become the image, except those in HOME. It
// has the network, the limits and the seccomp filter of c, never gains privileges and has the few
// capabilities that package managers need. It ignores Name, User, Env, the workspace, Mounts,
// ports, CapAdd, Labels, ReadOnly and Keep. ONBUILD instructions of the base are not executed.
//
// A command that fails is a [*BuildError]. If buildImage fails or ctx is done, nothing is left of
// the build. If the program dies, the sandbox of the build ends like any other.
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

// ensureBuilt builds the image unless the engine has it. Other programs that want it wait.
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

// tell reports a message to Progress.
func (c config) tell(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
}

// buildLock returns the name of the file that is locked while an image is built.
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

// checkImageName refuses an invalid name of an image.
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

// findImage returns a built image by its name and tag.
func findImage(ctx context.Context, eng *client.Client, ref string) (primitives.Image, error) {
	found, err := eng.ImageInspect(ctx, ref)
	if err != nil {
		return primitives.Image{}, engine.Explain(eng, err)
	}
	if found.Config == nil || found.Config.Labels[labelImage] != ref {
		return primitives.Image{}, fmt.Errorf("%w: rename the image %s, whose name is taken", fs.ErrExist, ref)
	}
	created, _ := time.Parse(time.RFC3339Nano, found.Created) // zero if it is unknown
	return primitives.Image{
		Ref: ref, ID: found.ID, Base: found.Config.Labels[labelImageBase], Labels: found.Config.Labels,
		Size: found.Size, Created: created.UTC(),
	}, nil
}

// Images returns the images that [Provider.BuildImage] has built and that still have their name,
// oldest first.
func (p Provider) Images(ctx context.Context) ([]primitives.Image, error) {
	var list []primitives.Image
	err := p.ask("list images", func(eng *client.Client) error {
		var err error
		list, err = listImages(ctx, eng)
		return err
	})
	return list, err
}

// RemoveImage removes an image that [Provider.BuildImage] built, by its Ref. The error is
// fs.ErrNotExist for another image, and fs.ErrExist for an image that containers use.
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

// BuildError says that one of [primitives.Install].Commands failed.
type BuildError struct {
	Command string
	// Status is the exit status of the command; zero if it could not be started.
	Status primitives.ExitStatus
	// Err says why the command could not be started, for example primitives.ErrCommandNotFound in
	// an image without a shell. Nil if it was started.
	Err error
	// Output is the end of the command's output.
	Output string
}

// shownLines is how many lines of the output Error shows.
const shownLines = 10

// Error returns the command, why it failed, and the last lines of its output.
func (e *BuildError) Error() string {
	text := fmt.Sprintf("%s: it exits with %d (%s)", e.Command, e.Status.Code, e.Status.Reason)
	if e.Err != nil {
		text = fmt.Sprintf("%s: %v", e.Command, e.Err)
	}
	if e.Output == "" {
		return text
	}
	lines := strings.Split(e.Output, "\n")
	return text + "; its output ends with:\n" + strings.Join(lines[max(0, len(lines)-shownLines):], "\n")
}

// Unwrap returns Err.
func (e *BuildError) Unwrap() error { return e.Err }

// buildCapabilities are the capabilities of root in a build: package managers unpack files of other
// users, and write into their folders.
var buildCapabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID"}

// buildGrace is how long a build lives on after its program has died.
const buildGrace = 10 * time.Second

// forBuild returns the configuration of the sandbox that builds an image: cfg without the settings
// for the user's own files, programs and names.
func (c config) forBuild(plan buildPlan) config {
	c.building = true
	c.Image, c.Pull = plan.base.ID, PullNever
	c.User, c.CapAdd, c.Grace = "0", buildCapabilities, buildGrace
	c.Name, c.Env, c.Workspace, c.WorkspacePath, c.Mounts, c.Ports, c.Publish = "", nil, "", "", nil, nil, nil
	c.ReadOnly, c.Keep = false, false
	if c.Network == "none" {
		c.Network = "" // installing needs a network
	}
	// The image inherits the labels of the container. These are the image's own.
	c.Labels = maps.Clone(plan.Labels)
	maps.DeleteFunc(c.Labels, func(key, _ string) bool { return strings.HasPrefix(key, labelPrefix) })
	return c
}

// build builds an image and gives it its name.
func build(ctx context.Context, eng *client.Client, cfg config, plan buildPlan) (img primitives.Image, err error) {
	if plan.base.Config != nil && len(plan.base.Config.OnBuild) > 0 {
		cfg.tell("the ONBUILD instructions of the image " + cfg.Image + " are not carried out")
	}
	d, err := create(ctx, cfg.forBuild(plan))
	if err != nil {
		return primitives.Image{}, err
	}
	defer func() {
		_, terr := d.sandbox.Terminate(context.WithoutCancel(ctx))
		err = errors.Join(err, terr, d.sandbox.Close())
	}()
	for _, command := range plan.Commands {
		if err := d.runBuild(ctx, command, plan.BuildEnv); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return primitives.Image{}, err
		}
	}
	// A program on another machine may have built the image meanwhile.
	if img, err = findImage(ctx, eng, plan.ref); !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if _, err := d.commitAs(ctx, plan.ref, d.builtConfig(plan)); err != nil {
		return primitives.Image{}, err
	}
	return findImage(ctx, eng, plan.ref)
}

// runBuild runs a command of a build and reports its output.
func (d *driver) runBuild(ctx context.Context, command string, env []string) error {
	d.cfg.tell(command)
	p, err := d.sandbox.Exec(ctx, primitives.Command{Args: []string{"/bin/sh", "-c", command}, Dir: "/", Env: env, MergeStderr: true})
	if err != nil {
		return &BuildError{Command: command, Err: err}
	}
	output := &outputLines{tell: d.cfg.tell}
	_, err = io.Copy(output, p.Stdout())
	status, werr := p.Wait(ctx)
	if err := errors.Join(err, werr, p.Close()); err != nil {
		return err
	}
	output.flush()
	if !status.Success() {
		return &BuildError{Command: command, Status: status, Output: output.last.String()}
	}
	return nil
}

// builtConfig returns the configuration of the built image: that of its base, with more labels. The
// engine takes missing settings from the container, which has them from the base.
func (d *driver) builtConfig(plan buildPlan) *container.Config {
	c := &container.Config{User: "0", WorkingDir: "/", Cmd: []string{"/bin/sh"}, Entrypoint: []string{}}
	if base := plan.base.Config; base != nil {
		c.Healthcheck, c.StopSignal, c.Shell = base.Healthcheck, base.StopSignal, base.Shell
		if base.User != "" {
			c.User = base.User
		}
		if base.WorkingDir != "" {
			c.WorkingDir = base.WorkingDir
		}
		if len(base.Entrypoint)+len(base.Cmd) > 0 {
			c.Entrypoint, c.Cmd = append(c.Entrypoint, base.Entrypoint...), base.Cmd
		}
	}
	c.Labels = d.imageLabels(plan.Labels)
	c.Labels[labelImage], c.Labels[labelImageBase], c.Labels[labelSession] = plan.ref, plan.on, ""
	if base := plan.base.Config; base != nil {
		c.Labels[labelSnapshot] = base.Labels[labelSnapshot] // checkLabels looks it up
	}
	return c
}

// outputLines reports output line by line, and keeps the end of it.
type outputLines struct {
	tell    func(string)
	partial string
	last    tail.Buffer
}

// maxOutputLine is the length at which a line is cut.
const maxOutputLine = 4 << 10

func (o *outputLines) Write(p []byte) (int, error) {
	_, _ = o.last.Write(p) // never fails
	o.partial += string(p)
	for {
		end := strings.IndexAny(o.partial, "\r\n")
		if end < 0 && len(o.partial) >= maxOutputLine {
			end = maxOutputLine
		}
		if end < 0 {
			return len(p), nil
		}
		rest := strings.TrimLeft(o.partial[end:], "\r\n")
		o.partial = o.partial[:end]
		o.flush()
		o.partial = rest
	}
}

// flush reports the pending part of a line.
func (o *outputLines) flush() {
	if line := strings.TrimSpace(o.partial); line != "" {
		o.tell(line)
	}
	o.partial = ""
}

// listImages returns the built images.
func listImages(ctx context.Context, eng *client.Client) ([]primitives.Image, error) {
	found, err := eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelImage))})
	if err != nil {
		return nil, err
	}
	containers, err := eng.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, err
	}
	list := make([]primitives.Image, 0, len(found))
	for _, i := range found {
		ref := i.Labels[labelImage]
		if !slices.Contains(i.RepoTags, ref) {
			continue // for example a snapshot of a container made of it
		}
		list = append(list, primitives.Image{
			Ref: ref, ID: i.ID, Base: i.Labels[labelImageBase], Labels: i.Labels,
			Size: i.Size, Created: time.Unix(i.Created, 0).UTC(),
			InUse: slices.ContainsFunc(containers, func(c container.Summary) bool { return c.ImageID == i.ID }),
		})
	}
	slices.SortFunc(list, func(a, b primitives.Image) int { return a.Created.Compare(b.Created) })
	return list, nil
}
