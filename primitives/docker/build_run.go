package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	buildtypes "github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// BuildError says that an instruction of [Build].Instructions failed.
type BuildError struct {
	// Instruction is the one that failed, as the engine shows it.
	Instruction string
	// Code is the exit status of its command; zero if it had none, for example
	// because the image has no shell.
	Code int
	// Output is the end of what it printed.
	Output string
	// Message is the engine's.
	Message string
}

// shownLines is how much of the output the text of the error shows.
const shownLines = 10

// Error tells all of it, the last lines of the output at the end.
func (e *BuildError) Error() string {
	text := fmt.Sprintf("%s: %s", e.Instruction, e.Message)
	if e.Output == "" {
		return text
	}
	lines := strings.Split(e.Output, "\n")
	return text + "; its output ends with:\n" + strings.Join(lines[max(0, len(lines)-shownLines):], "\n")
}

// build builds an image and gives it its name. Nothing without a name remains.
func build(ctx context.Context, eng *client.Client, cfg Config, plan buildPlan) (img Image, err error) {
	run := newID()
	labels := ownerLabels(Config{})
	maps.Copy(labels, plan.labels)
	labels[labelBuild] = run
	archive, err := packDockerfile(plan.dockerfile(labels))
	if err != nil {
		return Image{}, err
	}
	// Of what has a name nothing is removed.
	defer func() { err = errors.Join(err, removeHalfBuilt(ctx, eng, run)) }()
	res, err := eng.ImageBuild(ctx, archive, buildtypes.ImageBuildOptions{
		Version:   buildtypes.BuilderV1, // the other one needs a session with this program
		BuildArgs: plan.args, Platform: cfg.Platform, Remove: true, ForceRemove: true,
	})
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = res.Body.Close() }()
	id, err := followBuild(res.Body, cfg.tell)
	switch {
	case err != nil && ctx.Err() != nil:
		return Image{}, context.Cause(ctx)
	case err != nil:
		return Image{}, err
	}
	// A program on another machine may have been faster.
	if img, err = findImage(ctx, eng, plan.ref); !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if err := eng.ImageTag(ctx, id, plan.ref); err != nil {
		return Image{}, err
	}
	return findImage(ctx, eng, plan.ref)
}

// packDockerfile makes the context of a build, in which there is nothing else.
func packDockerfile(text string) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(text))}); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return nil, err
	}
	return &b, w.Close()
}

// buildMessage is one of those that the engine sends while it builds.
type buildMessage struct {
	Stream string              `json:"stream"`
	Aux    struct{ ID string } `json:"aux"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"errorDetail"`
}

// followBuild reads to the end of a build and returns the ID of the image.
func followBuild(body io.Reader, tell func(string)) (id string, err error) {
	limited := &io.LimitedReader{R: body}
	dec := json.NewDecoder(limited)
	step, output := "", outputLines{tell: tell}
	for {
		limited.N = maxPullLine
		var m buildMessage
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF) && id == "":
			return "", fmt.Errorf("%w: the engine built no image and did not say why", primitives.ErrUnavailable)
		case errors.Is(err, io.EOF):
			return id, nil
		case err != nil:
			return "", fmt.Errorf("%w: the engine stopped to tell of the build: %w", primitives.ErrUnavailable, err)
		case m.Error != nil:
			return "", &BuildError{Instruction: step, Code: m.Error.Code, Output: output.end(), Message: m.Error.Message}
		}
		if m.Aux.ID != "" {
			id = m.Aux.ID
		}
		instruction, engine := engineSays(m.Stream)
		if instruction != "" {
			step = instruction
			output.end()
			tell(step)
		}
		if engine {
			continue
		}
		output.add(m.Stream)
	}
}

// engineSays tells what the engine says from what a command prints, and returns
// the instruction that it begins with. A command that prints the same only hides
// its own words.
func engineSays(text string) (instruction string, engine bool) {
	if strings.HasPrefix(text, "Step ") {
		_, instruction, _ = strings.Cut(text, " : ")
		return strings.TrimSpace(instruction), true
	}
	for _, start := range []string{" ---> ", "Removing intermediate container ", "Successfully built "} {
		if strings.HasPrefix(text, start) {
			return "", true
		}
	}
	return "", false
}

// outputLines passes on what is printed line by line, and keeps the end of it.
type outputLines struct {
	tell    func(string)
	partial string
	last    tailBuffer
}

// maxOutputLine is where a longer line is cut.
const maxOutputLine = 4 << 10

func (o *outputLines) add(text string) {
	_, _ = o.last.Write([]byte(text)) // never fails
	lines := strings.FieldsFunc(o.partial+text, func(r rune) bool { return r == '\n' || r == '\r' })
	o.partial = ""
	if n := len(lines); n > 0 && !strings.HasSuffix(text, "\n") && !strings.HasSuffix(text, "\r") && len(lines[n-1]) < maxOutputLine {
		o.partial, lines = lines[n-1], lines[:n-1]
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" {
			o.tell(line)
		}
	}
}

// end returns the end of what was printed and begins anew.
func (o *outputLines) end() string {
	text := o.last.String()
	o.last, o.partial = tailBuffer{}, ""
	return text
}

const (
	halfBuiltPatience = 30 * time.Second
	halfBuiltPause    = 100 * time.Millisecond
)

// removeHalfBuilt removes what a build has left that has no name: the images of its
// first steps if it failed, and what the engine still works on if ctx has ended.
func removeHalfBuilt(ctx context.Context, eng *client.Client, run string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), halfBuiltPatience)
	defer cancel()
	tick := time.NewTicker(halfBuiltPause)
	defer tick.Stop()
	label := filters.NewArgs(filters.Arg("label", labelBuild+"="+run))
	for {
		working, err := eng.ContainerList(ctx, container.ListOptions{All: true, Filters: label})
		if err != nil {
			return explain(eng, err)
		}
		left, err := eng.ImageList(ctx, image.ListOptions{All: true, Filters: label})
		if err != nil {
			return explain(eng, err)
		}
		if slices.ContainsFunc(left, hasName) || len(left)+len(working) == 0 {
			return nil
		}
		for _, i := range left {
			if err := dropImages(ctx, eng, i.ID, isOfBuild(run)); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("remove what is left of the build: %w", ctx.Err())
		}
	}
}

func isOfBuild(run string) func(labels map[string]string) bool {
	return func(labels map[string]string) bool {
		return run != "" && labels[labelBuild] == run && labels[labelSandbox] == ""
	}
}

func hasName(i image.Summary) bool {
	return slices.ContainsFunc(i.RepoTags, func(tag string) bool { return tag != "<none>:<none>" }) ||
		slices.ContainsFunc(i.RepoDigests, func(digest string) bool { return digest != "<none>@<none>" })
}

// listImages returns the images that were built.
func listImages(ctx context.Context, eng *client.Client) ([]Image, error) {
	found, err := eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelImage))})
	if err != nil {
		return nil, err
	}
	containers, err := eng.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, err
	}
	list := make([]Image, 0, len(found))
	for _, i := range found {
		ref := i.Labels[labelImage]
		if !slices.Contains(i.RepoTags, ref) {
			continue // a snapshot of a container of it, for example
		}
		list = append(list, Image{
			Ref: ref, ID: i.ID, Base: i.Labels[labelImageBase], Labels: i.Labels,
			Size: i.Size, Created: time.Unix(i.Created, 0).UTC(),
			InUse: slices.ContainsFunc(containers, func(c container.Summary) bool { return c.ImageID == i.ID }),
		})
	}
	slices.SortFunc(list, func(a, b Image) int { return a.Created.Compare(b.Created) })
	return list, nil
}
