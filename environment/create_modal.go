package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// modalBackend makes sandboxes at Modal.
func modalBackend() backend {
	return backend{
		create: createModal,
		attach: func(ctx context.Context, cfg Config, id string) (primitives.EnvironmentPrimitive, error) {
			c := cfg.Sandbox.Modal
			c.Logger = cfg.Logger
			if c.Runner == "" {
				c.Runner = cfg.Runner
			}
			return asPrimitive(modal.Attach(ctx, c, id))
		},
		remove:   func(ctx context.Context, s Sandbox, id string) error { return modal.Remove(ctx, s.Modal, id) },
		list:     listModal,
		history:  historyAtModal,
		gc:       gcModal,
		images:   &imageStore{build: buildModalImage, list: listModalImages, remove: removeModalImage},
		present:  func(Sandbox) bool { return modal.Present() },
		reach:    reachGuest,
		settings: func(s *Sandbox) any { return &s.Modal },
		paths:    func(s *Sandbox) []*string { return []*string{&s.Modal.Runner} },
		single:   func(s Sandbox) bool { return s.Modal.Name != "" },
	}
}

func createModal(ctx context.Context, cfg Config) (primitives.EnvironmentPrimitive, error) {
	c, agent, err := modalConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s, err := modal.New(ctx, c)
	if errors.Is(err, fs.ErrInvalid) && agent != "" {
		// Is it because the agent could not be added? Modal knows what it has built.
		if _, ierr := modal.BuildImage(ctx, c); errors.Is(ierr, fs.ErrInvalid) {
			return nil, cannotAdd(c.Image, agent, ierr)
		}
	}
	return asPrimitive(s, err)
}

// modalConfig adds to the settings of the sandbox what the environment knows, and
// the agent's program to the image. It returns the name of that program; it is
// empty if none is needed.
func modalConfig(ctx context.Context, cfg Config) (c modal.Config, program string, err error) {
	c = cfg.Sandbox.Modal
	c.Keep = c.Keep || cfg.Keep
	if c.Session == "" {
		c.Session = cfg.SessionID
	}
	c.Logger, c.Progress = cfg.Logger, cfg.tell
	if c.Image == "" {
		c.Image = DefaultImage
	}
	if c.Runner == "" {
		c.Runner = cfg.Runner
	}
	if c.Runner == "" {
		if c.Runner, err = bundle.Path(ctx, bundle.Config{OS: "linux", Arch: modal.Arch, Progress: cfg.tell}); err != nil {
			return c, "", err
		}
	}
	if err := c.Validate(); err != nil {
		return c, "", fmt.Errorf("%w: sandbox: %w", ErrConfig, err)
	}
	if !cfg.wantsProgram() {
		return c, "", nil
	}
	recipe, err := readRecipe(ctx, cfg, c.Runner)
	if err != nil || recipe.Program == "" {
		return c, "", err
	}
	c.Dockerfile = append(slices.Clone(c.Dockerfile), addition(recipe))
	return c, recipe.Program, nil
}

// addition is the line of a Dockerfile that adds what a recipe names to an image,
// unless the program is there. Modal builds it once: whoever asks again finds it.
func addition(r runnerscripts.Recipe) string {
	steps := make([]string, 0, 4)
	for _, name := range installers(r) {
		steps = append(steps, fmt.Sprintf("{ command -v %s >/dev/null || { echo 'the image lacks %[1]s' >&2; false; }; }", name))
	}
	for _, command := range installation(r) {
		steps = append(steps, "{ "+command+"; }")
	}
	return fmt.Sprintf("RUN command -v %s >/dev/null || { %s; }", r.Program, strings.Join(steps, " && "))
}

// cannotAdd says what to do about an image that an agent cannot be added to.
func cannotAdd(image, program string, err error) error {
	return fmt.Errorf("%w: sandbox: image: %s: %w; choose an image that has %s, or one of a Debian system with npm to add it to, such as %s",
		ErrConfig, image, err, program, DefaultImage)
}

func listModal(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	found, err := modal.List(ctx, s.Modal)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		list = append(list, SandboxInfo{
			ID: f.ID, Type: s.Type, Status: f.Status, Created: f.Created, InUse: f.Owned, Image: f.Image, Name: f.Name,
			Kept: f.Kept,
		})
	}
	return list, err
}

// historyAtModal tells how a sandbox has ended. Modal does not say when.
func historyAtModal(ctx context.Context, s Sandbox, id string) ([]LogEntry, error) {
	state, err := modal.Look(ctx, s.Modal, id)
	switch {
	case err != nil:
		return nil, err
	case state.Running():
		return nil, nil
	case state.Status == primitives.StatusExited:
		return []LogEntry{{Source: logEngine, Message: fmt.Sprintf("ended with status %d", state.Exit.Code)}}, nil
	}
	return []LogEntry{{Source: logEngine, Message: string(state.Status)}}, nil
}

func gcModal(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	found, err := modal.GC(ctx, s.Modal, modal.GCOptions{DryRun: opts.DryRun, NoGrace: opts.NoGrace})
	removed := make([]Garbage, 0, len(found))
	for _, f := range found {
		removed = append(removed, Garbage{Kind: f.Kind, ID: f.ID, Why: f.Why, Created: f.Created})
	}
	return removed, err
}

func buildModalImage(ctx context.Context, cfg Config) (Image, error) {
	c, program, err := modalConfig(ctx, cfg)
	if err != nil {
		return Image{}, err
	}
	if program == "" && len(c.Dockerfile) == 0 {
		return Image{}, fmt.Errorf("%s: %s needs nothing: %w; use it as it is", c.Image, cfg.Agent.Name, fs.ErrExist)
	}
	id, err := modal.BuildImage(ctx, c)
	switch {
	case errors.Is(err, fs.ErrInvalid) && program != "":
		return Image{}, cannotAdd(c.Image, program, err)
	case err != nil:
		return Image{}, asConfigError(err)
	}
	recipe, err := readRecipe(ctx, cfg, c.Runner)
	return Image{Ref: id, Agent: recipe.Agent, Version: recipe.Version, Base: c.Image}, err
}

func listModalImages(context.Context, Sandbox) ([]Image, error) {
	return nil, fmt.Errorf("there is no list of the images at Modal: %w; look at them in its dashboard", errors.ErrUnsupported)
}

func removeModalImage(ctx context.Context, s Sandbox, ref string) error {
	return modal.RemoveSnapshot(ctx, s.Modal, ref)
}
