package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

var (
	_ primitives.Provider    = Provider{}
	_ primitives.SpecChecker = Provider{}
	_ primitives.Collector   = Provider{}
	_ primitives.Historian   = Provider{}
	_ primitives.ImageStore  = Provider{}
	_ primitives.Detector    = Provider{}
	_ primitives.Examiner    = Provider{}
)

// BuildImage builds the image that Create would use, unless Modal has it. Its Ref is an ID.
// Errors are those of Create, and fs.ErrExist if nothing needs to be added to the image.
func (p Provider) BuildImage(ctx context.Context, spec primitives.Spec) (primitives.Image, error) {
	cfg, err := p.config(ctx, spec)
	if err == nil && len(cfg.Dockerfile) == 0 {
		err = fmt.Errorf("%s needs nothing: %w; use it as it is", spec.Image, fs.ErrExist)
	}
	if err != nil {
		return primitives.Image{}, wrap("build", spec.Image, err)
	}
	id, err := cfg.buildImage(ctx)
	if errors.Is(err, fs.ErrInvalid) && spec.Install.Program != "" {
		err = cfg.cannotInstall(err)
	}
	return primitives.Image{Ref: id, Base: spec.Image, Labels: spec.Install.Labels}, wrap("build", spec.Image, err)
}

// buildImage builds the image and returns its ID.
func (c config) buildImage(ctx context.Context) (string, error) {
	if err := c.checkImage(); err != nil {
		return "", err
	}
	conn, err := connect(c.Provider)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	app, err := conn.findApp(ctx, c.Provider, true)
	if err != nil {
		return "", err
	}
	image, err := conn.image(ctx, app, c)
	if err != nil {
		return "", err
	}
	return image.ImageID, nil
}

// installLine returns the Dockerfile instruction that installs a program unless it is there.
// Modal builds and caches it once.
func installLine(install primitives.Install) string {
	steps := make([]string, 0, len(install.Needs)+len(install.Commands))
	for _, name := range install.Needs {
		steps = append(steps, fmt.Sprintf("{ command -v %s >/dev/null || { echo 'the image lacks %[1]s' >&2; false; }; }", name))
	}
	for _, command := range install.Commands {
		steps = append(steps, "{ "+command+"; }")
	}
	return fmt.Sprintf("RUN command -v %s >/dev/null || { %s; }", install.Program, strings.Join(steps, " && "))
}

// cannotInstall adds advice to the error of an image to which a program cannot be added.
func (c config) cannotInstall(err error) error {
	return fmt.Errorf("%w; choose an image that has %s, or %s", err, c.Install.Program, c.Install.Advice)
}

// Images returns errors.ErrUnsupported: Modal has no list of images.
func (p Provider) Images(context.Context) ([]primitives.Image, error) {
	return nil, fmt.Errorf("there is no list of the images at Modal: %w; look at them in its dashboard", errors.ErrUnsupported)
}

// RemoveImage removes an image, as RemoveSnapshot does.
func (p Provider) RemoveImage(ctx context.Context, ref string) error {
	return p.RemoveSnapshot(ctx, ref)
}
