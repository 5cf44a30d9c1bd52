package environment

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// Sandbox chooses the kind of sandbox and its settings: Spec has the settings of all kinds, and
// the block with a kind's name has those of that kind alone. In a configuration file it is
// either one word, as [Sandbox.UnmarshalText] reads it, or a mapping:
//
//	sandbox: docker
//	sandbox: ssh:build1
//	sandbox: {type: docker, image: golang:1.26, memory: 2GiB, network: none, docker: {pids: 512}}
//
// Changing the type changes only the kind: the blocks of other kinds may stay and are ignored. A
// setting that the kind does not support is errors.ErrUnsupported, with the name of the setting.
type Sandbox struct {
	// Type is the kind: "local", "docker", "modal" or "ssh"; with Provider, any other name.
	Type string `json:"type,omitempty"`
	// Spec describes the sandbox. Containers and sandboxes at Modal without an Image use
	// [DefaultImage]; if the image lacks the agent, [Create] uses one that is built on it, see
	// [BuildImage].
	primitives.Spec
	// AllowHosts are the hosts that a sandbox with the Network "none" may reach. A host is a
	// name such as "example.com", a pattern such as "*.example.com" (all names below it), an
	// address, or "*" for all hosts. It may have a port, as in "example.com:8443"; without one,
	// ports 80 and 443 are allowed. Programs find the hosts through the gateway, which is an
	// HTTP proxy in HTTP_PROXY and HTTPS_PROXY: see [Environment.ProxyEnv]. Only addresses of
	// the public internet can be reached. An empty list that is not nil allows no host until
	// [Environment.SetAllowHosts] does. For nil, [Attach] uses the list that this machine has
	// stored.
	AllowHosts []string `json:"allow_hosts,omitzero"`
	// Local is for the type "local": processes of this machine. In this and the other blocks a
	// nil Runner, Logger or Progress means that of the [Config].
	Local local.Provider `json:"local,omitzero"`
	// Docker is for the type "docker": a container.
	Docker docker.Provider `json:"docker,omitzero"`
	// Modal is for the type "modal": a sandbox at Modal.
	Modal modal.Provider `json:"modal,omitzero"`
	// SSH is for the type "ssh": another machine, which the ssh command reaches.
	SSH ssh.Provider `json:"ssh,omitzero"`
	// Provider creates sandboxes of a kind that this module does not have. Type is the name
	// under which they are recorded.
	Provider primitives.Provider `json:"-"`
}

// UnmarshalText reads a sandbox in one word: its type, or "ssh:" and the machine.
func (s *Sandbox) UnmarshalText(text []byte) error {
	*s = Sandbox{}
	return s.Choose(string(text))
}

// Choose sets the type, and the machine if word names one, in the form of
// [Sandbox.UnmarshalText]. All other settings stay.
func (s *Sandbox) Choose(word string) error {
	typ, address, given := strings.Cut(word, ":")
	if given {
		p, ok := s.blocks()[typ].(primitives.Addressed)
		if !ok {
			return fmt.Errorf("%w: sandbox: there is no type %q; only %s takes a machine after a colon", ErrConfig, word, strings.Join(addressedTypes(), " or "))
		}
		*p.Address() = address
	}
	s.Type = typ
	return nil
}

// Word returns the type, with the machine if it has one, in the form that [Sandbox.Choose]
// reads.
func (s Sandbox) Word() string {
	if p, ok := s.block().(primitives.Addressed); ok && *p.Address() != "" {
		return s.Type + ":" + *p.Address()
	}
	return s.Type
}

// addressedTypes returns the types whose sandboxes are on a machine that the configuration
// names.
func addressedTypes() []string {
	return slices.DeleteFunc(SandboxTypes(), func(typ string) bool {
		_, ok := new(Sandbox).blocks()[typ].(primitives.Addressed)
		return !ok
	})
}

// UnmarshalJSON reads both forms. A setting that the type does not have is [ErrConfig].
func (s *Sandbox) UnmarshalJSON(data []byte) error {
	*s = Sandbox{}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		var word string
		if err := json.Unmarshal(data, &word); err != nil {
			return fmt.Errorf("%w: sandbox: it is no type and no mapping; give a type, as in 'sandbox: docker', or a mapping with a type and its settings", ErrConfig)
		}
		return s.UnmarshalText([]byte(word))
	}
	type plain Sandbox // without this method
	var read plain
	if err := reader.Decode(data, &read, "sandbox"); err != nil {
		return err
	}
	if read.Type == "" {
		return fmt.Errorf("%w: sandbox.type: it is empty; name the type, for example local", ErrConfig)
	}
	*s = Sandbox(read)
	return s.check()
}

// MarshalJSON writes what UnmarshalJSON reads, in the short form if that is complete.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	type plain Sandbox // without this method
	settings, err := configfile.Settings(plain(s))
	if err != nil {
		return nil, err
	}
	if delete(settings, "type"); len(settings) == 0 {
		return json.Marshal(s.Type)
	}
	settings["type"] = s.Type
	return json.Marshal(settings)
}

// DefaultImage is the image of sandboxes if the configuration names none.
const DefaultImage = "node:22-bookworm-slim"

// SandboxTypes returns the types that a file can name, sorted.
func SandboxTypes() []string { return slices.Sorted(maps.Keys(new(Sandbox).blocks())) }

// block returns the provider of the type; nil for an unknown type. For a type of this module the
// provider is a field of s.
func (s *Sandbox) block() primitives.Provider {
	if s.Provider != nil {
		return s.Provider
	}
	return s.blocks()[s.Type]
}

// blocks returns the blocks of the types of this module, by type.
func (s *Sandbox) blocks() map[string]primitives.Provider {
	return map[string]primitives.Provider{"docker": &s.Docker, "local": &s.Local, "modal": &s.Modal, "ssh": &s.SSH}
}

// HasImage reports whether sandboxes of the type use images.
func (s Sandbox) HasImage() bool {
	_, ok := s.block().(primitives.ImageStore)
	return ok
}

// UsesHostFolder reports whether Workspace is a folder of this machine.
func (s Sandbox) UsesHostFolder() bool {
	p, ok := s.block().(primitives.PathHolder)
	return ok && slices.Contains(p.HostPaths(&s.Spec), &s.Workspace)
}

// check returns an error for an unknown type.
func (s Sandbox) check() error {
	types := strings.Join(SandboxTypes(), ", ")
	switch {
	case s.Type == "" && s.Provider != nil:
		return fmt.Errorf("%w: sandbox: a Provider needs a Type, under which its sandboxes are recorded", ErrConfig)
	case s.Type == "":
		return fmt.Errorf("%w: sandbox: its type is empty; set it to one of %s", ErrConfig, types)
	case s.Provider != nil && slices.Contains(SandboxTypes(), s.Type):
		return fmt.Errorf("%w: sandbox: the type %q is not that of the Provider; give the Type another name", ErrConfig, s.Type)
	case s.block() == nil:
		return fmt.Errorf("%w: sandbox: there is no type %q; choose one of: %s", ErrConfig, s.Type, types)
	}
	return nil
}

// provider returns the provider of the type. Providers of this module get settings of cfg.
func (s Sandbox) provider(cfg Config) (primitives.Provider, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Provider != nil {
		return s.Provider, nil // the caller's, which other calls may use concurrently
	}
	p := s.block()
	switch p := p.(type) {
	case *docker.Provider:
		cfg.fill(&p.Runner, &p.Logger, &p.Progress)
	case *local.Provider:
		if p.Runner == nil {
			p.Runner = cfg.localRunner(s.Keep)
		}
		cfg.fill(&p.Runner, &p.Logger, new(func(string)))
	case *modal.Provider:
		cfg.fill(&p.Runner, &p.Logger, &p.Progress)
	case *ssh.Provider:
		cfg.fill(&p.Runner, &p.Logger, &p.Progress)
	}
	return p, nil
}

type findRunner = func(ctx context.Context, goos, goarch string) (string, error)

// fill sets the nil fields of a block. The logger does not see the secrets of c.
func (c Config) fill(runner *findRunner, logger *hclog.Logger, progress *func(string)) {
	if *logger != nil {
		c.Logger = *logger
	}
	c = c.withRedactingLogger()
	*logger = c.Logger
	if *runner == nil {
		*runner = c.runnerFor
	}
	if *progress == nil {
		*progress = c.tell
	}
}

// runnerFor returns the runner for a platform.
func (c Config) runnerFor(ctx context.Context, goos, goarch string) (string, error) {
	if c.Runner != "" {
		return c.Runner, c.checkRunner()
	}
	return bundle.Path(ctx, bundle.Config{OS: goos, Arch: goarch, Progress: c.tell})
}

// localRunner is runnerFor for a sandbox that works without a runner: its commands end with this
// program.
func (c Config) localRunner(keep bool) findRunner {
	return func(ctx context.Context, goos, goarch string) (string, error) {
		if c.Runner == "" && !keep {
			return "", nil
		}
		name, err := c.runnerFor(ctx, goos, goarch)
		if errors.Is(err, bundle.ErrNotFound) {
			return "", nil // the first script fails with this error
		}
		return name, err
	}
}

// checkRunner returns an error if the configured runner does not exist.
func (c Config) checkRunner() error {
	if _, err := os.Stat(c.Runner); c.Runner != "" && err != nil {
		return fmt.Errorf("%w: runner: %w", ErrConfig, err)
	}
	return nil
}

// createSandbox creates the sandbox of the configuration.
func (c Config) createSandbox(ctx context.Context) (primitives.EnvironmentPrimitive, error) {
	p, spec, err := c.spec(ctx)
	if err != nil {
		return nil, err
	}
	made, err := p.Create(ctx, spec)
	if c.keepsPath() && err != nil && ctx.Err() == nil {
		c.SafeLogger().Warn("the workspace cannot have its path in the new sandbox", "path", c.KeepPath, eventlog.Error, err)
		spec.WorkspacePath = ""
		made, err = p.Create(ctx, spec)
	}
	if err != nil {
		if _, wrong := errors.AsType[*primitives.SettingError](err); wrong {
			return nil, c.Sandbox.settingError(err)
		}
		return nil, fmt.Errorf("create the sandbox: %w", explainBuild(asConfigError(err)))
	}
	return made, nil
}

// keepsPath reports whether the new sandbox should have its workspace at KeepPath.
func (c Config) keepsPath() bool {
	return c.KeepPath != "" && c.Sandbox.Workspace == "" && c.Sandbox.WorkspacePath == ""
}

// spec returns the provider and the Spec of the sandbox, including what the agent needs.
func (c Config) spec(ctx context.Context) (primitives.Provider, primitives.Spec, error) {
	spec := c.Sandbox.Spec
	p, err := c.Sandbox.provider(c)
	if err != nil {
		return nil, spec, err
	}
	spec.Session = cmp.Or(spec.Session, c.SessionID)
	if c.keepsPath() {
		spec.WorkspacePath = c.KeepPath
	}
	if _, ok := p.(primitives.ImageStore); !ok {
		return p, spec, nil
	}
	spec.Image = cmp.Or(spec.Image, DefaultImage)
	if !c.wantsProgram() {
		return p, spec, nil
	}
	recipe, err := readRecipe(ctx, c)
	if err == nil && recipe.Program != "" {
		spec.Install = c.install(recipe)
	}
	return p, spec, err
}

// settingError is a wrong setting, with its name in the configuration.
type settingError struct {
	error
	wrong *primitives.SettingError
}

// Unwrap returns the printed error and the original one.
func (n *settingError) Unwrap() []error { return []error{n.error, n.wrong} }

// settingError replaces the names of wrong settings by their names in the configuration. Other
// joined errors stay.
func (s Sandbox) settingError(err error) error {
	if _, ok := errors.AsType[*primitives.SettingError](err); !ok {
		return asConfigError(err)
	}
	switch err := err.(type) { //nolint:errorlint // every error of the chain is looked at
	case *primitives.SettingError:
		kind := err.Err
		if errors.Is(kind, fs.ErrInvalid) {
			kind = ErrConfig
		}
		return &settingError{fmt.Errorf("%w: %s: %s", kind, s.setting(err.Setting), err.Problem), err}
	case interface{ Unwrap() []error }:
		var all []error
		for _, e := range err.Unwrap() {
			all = append(all, s.settingError(e))
		}
		return errors.Join(all...)
	case interface{ Unwrap() error }:
		return s.settingError(err.Unwrap())
	}
	return err
}

// setting returns the name of a setting in files: the settings of all kinds stand beside the
// type, the others in the block of the type.
func (s Sandbox) setting(name string) string {
	first, _, _ := strings.Cut(name, "[")
	first, _, _ = strings.Cut(first, ".")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[primitives.Spec]()) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key == first {
			return "sandbox." + name
		}
	}
	return "sandbox." + s.Type + "." + name
}

// asConfigError wraps the error of an invalid setting in [ErrConfig].
func asConfigError(err error) error {
	if errors.Is(err, fs.ErrInvalid) && !errors.Is(err, ErrConfig) {
		return fmt.Errorf("%w: sandbox: %w", ErrConfig, err)
	}
	return err
}

// explainBuild explains why a build may not have reached the package registries.
func explainBuild(err error) error {
	if failed, ok := errors.AsType[*primitives.Error](err); ok && failed.Op == "build image" && hasPassword(proxies()) {
		return fmt.Errorf("%w; builds are not given the password of the proxy: use a proxy that needs none", err)
	}
	return err
}

// install returns how an image gets the program of an agent.
func (c Config) install(r runnerscripts.Recipe) primitives.Install {
	build := primitives.Install{
		Program: r.Program, Env: primitives.Spec{Env: c.Agent.Env}.Environ(), Needs: installers(r), Commands: installation(r),
		Name: "agentenv-" + r.Agent, Labels: map[string]string{labelAgent: r.Agent, labelAgentVersion: r.Version},
		Advice: "one of a Debian system with npm to add it to, such as " + DefaultImage,
	}
	for _, proxy := range proxies() {
		build.BuildEnv = append(build.BuildEnv, withoutPassword(proxy)) // the base image's commands see it
	}
	return build
}

// Examine returns what sandboxes of the configuration need and lack, without creating one. A
// type that needs nothing, or whose provider cannot say, has no findings.
func Examine(ctx context.Context, cfg Config) ([]primitives.Finding, error) {
	p, err := cfg.Sandbox.provider(cfg)
	if err != nil {
		return nil, err
	}
	examiner, ok := p.(primitives.Examiner)
	if !ok {
		return nil, nil
	}
	spec := cfg.Sandbox.Spec
	if cfg.Sandbox.HasImage() {
		spec.Image = cmp.Or(spec.Image, DefaultImage)
	}
	return examiner.Examine(ctx, spec), nil
}

// InstalledTypes returns the types that this machine is set up for. Types that need no setup
// come first, so the first type works without an engine or an account. InstalledTypes leaves out
// "docker" if neither the configuration of the docker command nor a socket indicates an engine,
// and "modal" without credentials. It makes no connection, so an installed type may still not
// answer.
func InstalledTypes() []string {
	var always, found []string
	for _, typ := range SandboxTypes() {
		if d, ok := new(Sandbox).blocks()[typ].(primitives.Detector); !ok {
			always = append(always, typ)
		} else if d.Present() {
			found = append(found, typ)
		}
	}
	return append(always, found...)
}

// end ends an unusable sandbox, even if ctx is done.
func end(ctx context.Context, s primitives.EnvironmentPrimitive) error {
	_, err := s.Terminate(context.WithoutCancel(ctx))
	return errors.Join(err, s.Close())
}
