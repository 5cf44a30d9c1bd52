package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
)

// BuildError says that one of [Build].Commands failed.
type BuildError struct {
	Command string
	// Status is how the command ended; the zero value if it could not be started.
	Status primitives.ExitStatus
	// Err says why the command could not be started, for example
	// primitives.ErrCommandNotFound in an image without a shell. Nil if it was.
	Err error
	// Output is the end of what it printed.
	Output string
}

// shownLines is how much of the output the text of the error shows.
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

// buildCapabilities are those of the root of a build: package managers unpack files of
// other users, and write into folders of theirs.
//
//nolint:gochecknoglobals // a constant
var buildCapabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID"}

// buildGrace is how long a build lives on whose program has died.
const buildGrace = 10 * time.Second

// forBuild is the configuration of the sandbox in which an image is built: cfg without
// all that is for the user's own files, programs and names.
func (c config) forBuild(plan buildPlan) config {
	c.building = true
	c.Image, c.Pull = plan.base.ID, PullNever
	c.User, c.CapAdd, c.Grace = "0", buildCapabilities, buildGrace
	c.Name, c.Env, c.Workspace, c.WorkspacePath, c.Mounts, c.Ports, c.Publish = "", nil, "", "", nil, nil, nil
	c.ReadOnly, c.Keep = false, false
	// The image gets the labels of the container. These are its own.
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
	// A program on another machine may have been faster.
	if img, err = findImage(ctx, eng, plan.ref); !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if _, err := d.commitAs(ctx, plan.ref, d.builtConfig(plan)); err != nil {
		return primitives.Image{}, err
	}
	return findImage(ctx, eng, plan.ref)
}

// runBuild runs a command of a build and passes on what it prints.
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

// builtConfig is the configuration of the image that is made of a build: that of its
// base, with more labels. What is left out the engine takes from the container, which
// has it from the base.
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
		c.Labels[labelSnapshot] = base.Labels[labelSnapshot] // by which checkLabels knows what it is built on
	}
	return c
}

// outputLines passes on what is printed line by line, and keeps the end of it.
type outputLines struct {
	tell    func(string)
	partial string
	last    tail.Buffer
}

// maxOutputLine is where a longer line is cut.
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

// flush passes on a line that has no end.
func (o *outputLines) flush() {
	if line := strings.TrimSpace(o.partial); line != "" {
		o.tell(line)
	}
	o.partial = ""
}

// listImages returns the images that were built.
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
			continue // a snapshot of a container of it, for example
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
