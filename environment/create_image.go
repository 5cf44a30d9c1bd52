package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The labels of images with an agent.
const (
	labelAgent        = "dev.agentenv.agent"
	labelAgentVersion = "dev.agentenv.agent.version"
)

// Image is an image of which containers with an agent are made.
type Image struct {
	Ref     string    `json:"ref"` // for the image of a sandbox of type "docker"
	Agent   string    `json:"agent"`
	Version string    `json:"version"` // of the agent
	Base    string    `json:"base"`    // the image that the agent was added to
	Size    int64     `json:"size"`    // in bytes, with that of its base
	Created time.Time `json:"created"`
	InUse   bool      `json:"in_use"` // there is a container of it
}

// BuildImage prepares the image that [Create] would use for cfg, and returns it:
// one with cfg.Agent on the image of cfg.Sandbox, which must be of the type
// "docker" or "modal". It is built once and then found again; cfg.Progress is told what
// happens. An image that has the agent already, and an agent that needs nothing,
// is fs.ErrExist.
func BuildImage(ctx context.Context, cfg Config) (Image, error) {
	store, err := cfg.Sandbox.images()
	if err != nil {
		return Image{}, err
	}
	return store.build(ctx, cfg)
}

// Images returns the images with agents that there are, oldest first. The sandbox
// must be of a type that has such, "docker"; Modal has, but does not list them:
// errors.ErrUnsupported.
func Images(ctx context.Context, s Sandbox) ([]Image, error) {
	store, err := s.images()
	if err != nil {
		return nil, err
	}
	return store.list(ctx, s)
}

// RemoveImage removes one of [Images] by its Ref. One of which there are
// containers is fs.ErrExist, another image fs.ErrNotExist.
func RemoveImage(ctx context.Context, s Sandbox, ref string) error {
	store, err := s.images()
	if err != nil {
		return err
	}
	return store.remove(ctx, s, ref)
}

// images returns what holds the images with agents of the type.
func (s Sandbox) images() (*imageStore, error) {
	b, err := s.backend()
	switch {
	case err != nil:
		return nil, err
	case b.images == nil:
		return nil, fmt.Errorf("%w: sandbox: the type %s has no images; choose one that has, such as docker", ErrConfig, s.Type)
	}
	return b.images, nil
}

func buildImage(ctx context.Context, cfg Config) (Image, error) {
	c, err := dockerConfig(ctx, cfg)
	if err != nil {
		return Image{}, err
	}
	with, s, err := imageWithAgent(ctx, cfg, c)
	if s != nil {
		err = errors.Join(err, end(ctx, s))
	}
	switch {
	case err != nil:
		return Image{}, err
	case with.Ref == "":
		return Image{}, fmt.Errorf("%s has all that %s needs: %w; use it as it is", c.Image, cfg.Agent.Name, fs.ErrExist)
	}
	return describeImage(with), nil
}

func listImages(ctx context.Context, s Sandbox) ([]Image, error) {
	found, err := docker.Images(ctx, s.Docker)
	list := make([]Image, 0, len(found))
	for _, i := range found {
		if i.Labels[labelAgent] != "" {
			list = append(list, describeImage(i))
		}
	}
	return list, err
}

func removeImage(ctx context.Context, s Sandbox, ref string) error {
	return docker.RemoveImage(ctx, s.Docker, ref)
}

func describeImage(i docker.Image) Image {
	return Image{
		Ref: i.Ref, Agent: i.Labels[labelAgent], Version: i.Labels[labelAgentVersion],
		Base: i.Base, Size: i.Size, Created: i.Created, InUse: i.InUse,
	}
}

// newContainer makes a container of the configured image, or, if the agent is not
// in that, of one that is built on it.
func newContainer(ctx context.Context, cfg Config, c docker.Config) (*guest.Sandbox, error) {
	with, s, err := imageWithAgent(ctx, cfg, c)
	switch {
	case err != nil:
		return nil, err
	case s != nil:
		return s, nil
	case with.Ref != "":
		c.Image, c.Pull = with.Ref, docker.PullNever
	}
	return docker.New(ctx, c)
}

// imageWithAgent returns the image that has to be used instead of the configured
// one; the zero value if that is fine. The first to ask makes a container of the
// configured image and looks into it; if the agent is there, that is returned, to
// be used. Later the built image shows by being there that it is needed.
func imageWithAgent(ctx context.Context, cfg Config, c docker.Config) (docker.Image, *guest.Sandbox, error) {
	if !cfg.wantsProgram() {
		return docker.Image{}, nil, nil
	}
	recipe, err := readRecipe(ctx, cfg, c.Runner)
	if err != nil || recipe.Program == "" {
		return docker.Image{}, nil, err
	}
	build := agentBuild(recipe)
	built, err := docker.FindImage(ctx, c, build)
	if !errors.Is(err, fs.ErrNotExist) {
		return built, nil, err
	}
	s, err := docker.New(ctx, c)
	if err != nil {
		return docker.Image{}, nil, err
	}
	missing, err := lacks(ctx, s, cfg, recipe.Program)
	if err == nil && len(missing) == 0 {
		return docker.Image{}, s, nil
	}
	if err == nil {
		missing, err = lacks(ctx, s, cfg, installers(recipe)...)
	}
	if err = errors.Join(err, end(ctx, s)); err != nil {
		return docker.Image{}, nil, err
	}
	if len(missing) > 0 {
		return docker.Image{}, nil, fmt.Errorf("%w: sandbox: image: %s lacks %s and %s; choose an image that has %[3]s, or one of a Debian system with npm to add it to, such as %[5]s",
			ErrConfig, c.Image, recipe.Program, strings.Join(missing, " and "), DefaultImage)
	}
	built, err = docker.BuildImage(ctx, c, build)
	if err != nil {
		return docker.Image{}, nil, fmt.Errorf("add %s to the image%s: %w", recipe.Agent, buildAdvice(c), err)
	}
	return built, nil, nil
}

// buildAdvice says why a build may not have reached the registries of packages.
func buildAdvice(c docker.Config) string {
	switch {
	case c.Network == "none":
		return ", without a network; set another network for the first sandbox, or for envctl image build"
	case hasPassword(proxies()):
		return ", through a proxy without its password, which builds are not given; use a proxy that needs none"
	}
	return ""
}

// end ends a sandbox that is of no use, also when ctx is done.
func end(ctx context.Context, s primitives.EnvironmentPrimitive) error {
	_, err := s.Terminate(context.WithoutCancel(ctx))
	return errors.Join(err, s.Close())
}

// agentBuild is how the image with an agent is built. The commands of the base see the
// environment, so there is no password in it.
func agentBuild(r runnerscripts.Recipe) docker.Build {
	build := docker.Build{
		Name:     "agentenv-" + r.Agent,
		Commands: installation(r),
		Labels:   map[string]string{labelAgent: r.Agent, labelAgentVersion: r.Version},
	}
	for _, proxy := range proxies() {
		build.Env = append(build.Env, withoutPassword(proxy))
	}
	return build
}

// proxies are the variables of this machine with proxies through which a build reaches
// the registries of packages. One on the machine itself is of no use in a container.
func proxies() []string {
	var env []string
	for _, key := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		for _, name := range []string{key, strings.ToLower(key)} {
			if value := os.Getenv(name); value != "" && !onLoopback(value) {
				env = append(env, name+"="+value)
			}
		}
	}
	return env
}

// withoutPassword removes the user name and the password from the variable of a proxy.
func withoutPassword(variable string) string {
	name, value, _ := strings.Cut(variable, "=")
	at := strings.LastIndexByte(value, '@')
	if at < 0 {
		return variable
	}
	scheme, _, ok := strings.Cut(value[:at], "://")
	if !ok {
		return name + "=" + value[at+1:]
	}
	return name + "=" + scheme + "://" + value[at+1:]
}

func hasPassword(env []string) bool {
	return slices.ContainsFunc(env, func(variable string) bool { return withoutPassword(variable) != variable })
}

func onLoopback(proxy string) bool {
	u, err := url.Parse(proxy)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}
