package environment

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/acpregistry"
	"github.com/agentenv-dev/agentenv/primitives"
)

// The labels of images with an agent.
const (
	labelAgent        = "dev.agentenv.agent"
	labelAgentVersion = "dev.agentenv.agent.version"
)

// Image is an image with an agent, for containers.
type Image struct {
	Ref     string    `json:"ref"` // for the image of a sandbox of type "docker"
	Agent   string    `json:"agent"`
	Version string    `json:"version"` // of the agent
	Base    string    `json:"base"`    // the image that the agent was added to
	Size    int64     `json:"size"`    // in bytes, with that of its base
	Created time.Time `json:"created"`
	InUse   bool      `json:"in_use"` // a container uses it
}

// BuildImage builds the image that [Create] would use for cfg, and returns it: the image of
// cfg.Sandbox with cfg.Agent added. The sandbox's type must have images, as "docker" and "modal"
// do. The image is built once; later calls find it. Progress reports the steps. If the image has
// the agent already, or the agent needs nothing, the error is fs.ErrExist. For an agent of the ACP
// registry that is no package of npm it is errors.ErrUnsupported.
func BuildImage(ctx context.Context, cfg Config) (Image, error) {
	if _, err := cfg.Sandbox.images(cfg); err != nil {
		return Image{}, err
	}
	p, spec, err := cfg.spec(ctx)
	if err != nil {
		return Image{}, err
	}
	if a, ok := acpregistry.Find(cfg.Agent.Name); ok && a.NPM == "" && cfg.wantsProgram() {
		return Image{}, fmt.Errorf("%s cannot be added to an image: %w, because it is no package of npm; choose an image with its program %q",
			cfg.Agent.Name, errors.ErrUnsupported, a.Program)
	}
	store, _ := p.(primitives.ImageStore) // images has checked that it is one
	i, err := store.BuildImage(ctx, spec)
	return describeImage(i), explainBuild(cfg.Sandbox.settingError(err))
}

// Images returns the existing images with agents, oldest first. The sandbox's type must be
// "docker": Modal has such images but does not list them, which is errors.ErrUnsupported.
func Images(ctx context.Context, s Sandbox) ([]Image, error) {
	store, err := s.images(Config{})
	if err != nil {
		return nil, err
	}
	found, err := store.Images(ctx)
	list := make([]Image, 0, len(found))
	for _, i := range found {
		if i.Labels[labelAgent] != "" {
			list = append(list, describeImage(i))
		}
	}
	return list, err
}

// RemoveImage removes one of [Images] by its Ref. The error is fs.ErrExist for an image that
// containers use, and fs.ErrNotExist if [Images] has no such image.
func RemoveImage(ctx context.Context, s Sandbox, ref string) error {
	store, err := s.images(Config{})
	if err != nil {
		return err
	}
	return store.RemoveImage(ctx, ref)
}

// images returns the store of images with agents of the sandbox's type.
func (s Sandbox) images(cfg Config) (primitives.ImageStore, error) {
	p, err := s.provider(cfg)
	if err != nil {
		return nil, err
	}
	store, ok := p.(primitives.ImageStore)
	if !ok {
		return nil, fmt.Errorf("%w: sandbox: the type %s has no images; choose one that has, such as docker", ErrConfig, s.Type)
	}
	return store, nil
}

func describeImage(i primitives.Image) Image {
	return Image{
		Ref: i.Ref, Agent: i.Labels[labelAgent], Version: i.Labels[labelAgentVersion],
		Base: i.Base, Size: i.Size, Created: i.Created, InUse: i.InUse,
	}
}

// proxies returns the proxy variables of this machine, through which a build reaches the package
// registries. It leaves out proxies on the loopback interface, which a container cannot reach.
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
