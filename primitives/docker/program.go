package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// BuildImage returns an image that is built on spec.Image and holds spec.Install; Create would use
// it. It is built once and found again later. If spec.Image already has the program, the error is
// fs.ErrExist.
func (p Provider) BuildImage(ctx context.Context, spec primitives.Spec) (primitives.Image, error) {
	cfg, err := p.config(ctx, spec)
	if err != nil {
		return primitives.Image{}, wrap("build image", spec.Image, err)
	}
	with, s, err := imageWithProgram(ctx, cfg)
	if s != nil {
		err = errors.Join(err, end(ctx, s))
	}
	if err == nil && with.Ref == "" {
		err = fmt.Errorf("%s needs nothing: %w; use it as it is", spec.Image, fs.ErrExist)
	}
	return with, err
}

// newWithProgram makes a container of the image or, if that lacks the program of cfg.Install, of an
// image that is built on it.
func newWithProgram(ctx context.Context, cfg config) (*guest.Sandbox, error) {
	with, s, err := imageWithProgram(ctx, cfg)
	switch {
	case err != nil || s != nil:
		return s, err
	case with.Ref != "":
		cfg.Image, cfg.Pull = with.Ref, PullNever
	}
	return newSandbox(ctx, cfg)
}

// imageWithProgram returns the image to use instead of cfg.Image, or the zero value if cfg.Image
// has the program. The first call makes a container of cfg.Image and looks for the program. If the
// program is there, the call returns that container for use. Later calls find the built image.
func imageWithProgram(ctx context.Context, cfg config) (primitives.Image, *guest.Sandbox, error) {
	none, install := primitives.Image{}, cfg.Install
	if install.Program == "" {
		return none, nil, nil
	}
	built, err := cfg.findBuilt(ctx)
	if !errors.Is(err, fs.ErrNotExist) {
		return built, nil, err
	}
	s, err := newSandbox(ctx, cfg)
	if err != nil {
		return none, nil, err
	}
	missing, err := primitives.MissingCommands(ctx, s, install.Env, install.Program)
	if err == nil && len(missing) == 0 {
		return none, s, nil
	}
	if err == nil {
		missing, err = primitives.MissingCommands(ctx, s, install.Env, install.Needs...)
	}
	if err = errors.Join(err, end(ctx, s)); err != nil {
		return none, nil, err
	}
	if len(missing) > 0 {
		return none, nil, cfg.invalid("image", fmt.Sprintf("%s lacks %s and %s; choose an image that has %[2]s, or %[4]s",
			cfg.Image, install.Program, strings.Join(missing, " and "), install.Advice))
	}
	built, err = cfg.buildImage(ctx)
	if err != nil {
		return none, nil, fmt.Errorf("add %s to the image: %w", install.Program, err)
	}
	return built, nil, nil
}

// end terminates a sandbox that is not needed, even if ctx is done.
func end(ctx context.Context, s *guest.Sandbox) error {
	_, err := s.Terminate(context.WithoutCancel(ctx))
	return errors.Join(err, s.Close())
}

// HostPaths returns the settings that are paths of this machine.
func (p *Provider) HostPaths(spec *primitives.Spec) []*string {
	all := []*string{&p.Seccomp, &spec.Workspace}
	for i := range p.Mounts {
		all = append(all, &p.Mounts[i].Source)
	}
	return all
}
