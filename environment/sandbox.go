package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// Sandbox chooses the kind of sandbox and its settings: Spec has the settings of all kinds, and
// Provider those of one kind alone. In a configuration file it is either one word, as
// [Sandbox.UnmarshalText] reads it, or a mapping, in which the block with the type's name holds the
// settings of the Provider:
//
//	sandbox: docker
//	sandbox: ssh:build1
//	sandbox: {type: docker, image: golang:1.26, memory: 2GiB, network: none, docker: {pids: 512}}
//
// In Go the last one is
//
//	environment.Sandbox{
//		Type:     "docker",
//		Spec:     primitives.Spec{Image: "golang:1.26", Memory: 2 << 30, Network: "none"},
//		Provider: &docker.Provider{Pids: 512},
//	}
//
// A program links the types whose packages it imports; "local" always. It needs no name of a
// package if it only chooses a type:
//
//	import _ "github.com/agentenv-dev/agentenv/primitives/docker"
//
// Changing the type in a file changes only the kind: the blocks of other types may stay and are
// ignored, also those of "docker", "modal" and "ssh" in a program that does not link them. In Go,
// [Sandbox.Choose] does the same. A setting that the kind does not support is
// errors.ErrUnsupported, with the name of the setting.
type Sandbox struct {
	// Type is the kind: one of primitives.Types, or any other name for a Provider that is not
	// registered. Sandboxes are recorded under it.
	Type string `json:"type,omitempty"`
	// Spec describes the sandbox. Containers and sandboxes at Modal without an Image use
	// [DefaultImage]; if the image lacks the agent, [Create] uses one that is built on it, see
	// [BuildImage].
	primitives.Spec
	// AllowHosts are the hosts that a sandbox with the Network "none" may reach. A host is a
	// name such as "example.com", a pattern such as "*.example.com" (all names below it), an
	// address, or "*" for all hosts. It may have a port, as in "example.com:8443"; without one,
	// ports 80 and 443 are allowed. Programs find the hosts through the gateway, which is an
	// HTTP proxy in HTTP_PROXY and HTTPS_PROXY: see [Environment.GatewayEnv]. Only addresses of
	// the public internet can be reached. An empty list that is not nil allows no host until
	// [Environment.SetAllowHosts] does. For nil, [Attach] uses the list that this machine has
	// stored.
	AllowHosts []string `json:"allow_hosts,omitzero"`
	// Provider has the settings of the Type alone, as a *docker.Provider has for "docker". Nil means
	// the defaults. A Provider of a kind that is not registered needs a Type that is not, either.
	// Copies of the Sandbox share it, and nothing here changes it: see [Hosted].
	Provider primitives.Provider `json:"-"`
	// others are the blocks of other types in a file, by type: each is a provider, or unlinked. It
	// is never changed, because copies share it.
	others map[string]any
}

// Hosted is implemented by providers with settings that no file can have, because they are functions
// and loggers of the program. [Create], [Attach] and the other functions of this package fill in those
// of the [Config], in a shallow copy of the provider.
type Hosted interface {
	// HostSettings returns where the provider has its settings, which may be nil; nil instead of
	// a place means that it has no such setting. runner finds the envrunner program for a platform;
	// logger takes diagnostics, without the secrets of the Config; progress is [Config].Progress.
	HostSettings() (
		runner *func(ctx context.Context, goos, goarch string) (string, error), logger *hclog.Logger, progress *func(message string),
	)
}

// DefaultImage is the image of sandboxes if the configuration names none.
const DefaultImage = "node:22-bookworm-slim"

// HasImage reports whether sandboxes of the type use images.
func (s Sandbox) HasImage() bool {
	_, ok := s.of(s.Type).(primitives.ImageStore)
	return ok
}

// UsesHostFolder reports whether Workspace is a folder of this machine.
func (s Sandbox) UsesHostFolder() bool {
	p, ok := s.of(s.Type).(primitives.PathHolder)
	return ok && slices.Contains(p.HostPaths(&s.Spec), &s.Workspace)
}

// check returns an error for a type that this program does not have, or that is not the Provider's.
func (s Sandbox) check() error {
	s.Provider = s.given()
	types := primitives.Types()
	given, own := reflect.TypeOf(s.Provider), typeOf(s.Provider, "")
	switch {
	case s.Type == "" && own != "":
		return fmt.Errorf("%w: sandbox: its type is empty; set it to %q, the type of a %v", ErrConfig, own, given)
	case s.Type == "" && s.Provider != nil:
		return fmt.Errorf("%w: sandbox: its type is empty; set it to a name under which sandboxes of a %v are recorded", ErrConfig, given)
	case s.Type == "":
		return fmt.Errorf("%w: sandbox: its type is empty; set it to one of %s", ErrConfig, strings.Join(types, ", "))
	case s.Provider != nil && slices.Contains(types, s.Type) && !registeredAs(s.Provider, s.Type):
		return fmt.Errorf("%w: sandbox: the type %q is that of a %T, not of a %v; change the type with Choose, or give the Provider another one",
			ErrConfig, s.Type, primitives.NewProvider(s.Type), given)
	case own != "" && own != s.Type:
		return fmt.Errorf("%w: sandbox: the type %q is not that of a %v; set it to %q", ErrConfig, s.Type, given, own)
	case s.of(s.Type) == nil && notLinked(s.Type):
		return errNotLinked(s.Type)
	case s.of(s.Type) == nil:
		return fmt.Errorf("%w: sandbox: there is no type %q; choose one of: %s", ErrConfig, s.Type, strings.Join(types, ", "))
	}
	return nil
}

// Provider returns the provider of cfg.Sandbox, with what cfg has for it: for programs that work with sandboxes without an agent.
// It is shared with cfg if it needs nothing of it.
func Provider(cfg Config) (primitives.Provider, error) { return cfg.Sandbox.provider(cfg) }

// provider returns the provider of the type, with settings of cfg.
func (s Sandbox) provider(cfg Config) (primitives.Provider, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	p := s.of(s.Type)
	if _, ok := p.(Hosted); !ok {
		return p, nil
	}
	p = clone(p)
	if hosted, ok := p.(Hosted); ok {
		runner := cfg.runnerFor
		if _, here := p.(*local.Provider); here {
			runner = cfg.localRunner(s.Keep)
		}
		cfg.fill(hosted, runner)
	}
	return p, nil
}

type findRunner = func(ctx context.Context, goos, goarch string) (string, error)

// fill sets the nil settings of a provider. Its logger does not see the secrets of c.
func (c Config) fill(p Hosted, find findRunner) {
	runner, logger, progress := p.HostSettings()
	if runner != nil && *runner == nil {
		*runner = find
	}
	if progress != nil && *progress == nil {
		*progress = c.tell
	}
	if logger != nil {
		if *logger != nil {
			c.Logger = *logger
		}
		*logger = c.withRedactingLogger().Logger
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
		c.SafeLogger().Warn("the workspace cannot have its path in the new sandbox", "path", c.Session.KeepPath, eventlog.Error, err)
		spec.WorkspacePath = ""
		made, err = p.Create(ctx, spec)
	}
	if err != nil {
		return nil, c.notCreated(err)
	}
	return made, nil
}

// notCreated returns the error of a provider with the names that settings have in the configuration.
func (c Config) notCreated(err error) error {
	if _, wrong := errors.AsType[*primitives.SettingError](err); wrong {
		return c.Sandbox.settingError(err)
	}
	return fmt.Errorf("create the sandbox: %w", explainBuild(asConfigError(err)))
}

// checkSandbox returns the errors of createSandbox that the provider knows before.
func (c Config) checkSandbox() error {
	p, err := c.Sandbox.provider(c)
	if err != nil {
		return err
	}
	checker, ok := p.(primitives.SpecChecker)
	if !ok {
		return nil
	}
	spec := c.Sandbox.Spec
	if _, images := p.(primitives.ImageStore); images {
		spec.Image = cmp.Or(spec.Image, DefaultImage)
	}
	if err := checker.CheckSpec(spec); err != nil {
		return c.notCreated(err)
	}
	return nil
}

// keepsPath reports whether the new sandbox should have its workspace at KeepPath.
func (c Config) keepsPath() bool {
	return c.Session.KeepPath != "" && c.Sandbox.Workspace == "" && c.Sandbox.WorkspacePath == ""
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
		spec.WorkspacePath = c.Session.KeepPath
	}
	_, images := p.(primitives.ImageStore)
	if images {
		spec.Image = cmp.Or(spec.Image, DefaultImage)
	}
	if _, installs := p.(primitives.Installer); !images && !installs || !c.wantsProgram() {
		return p, spec, nil
	}
	recipe, err := readRecipe(ctx, c)
	if err == nil && len(installation(recipe)) > 0 {
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
		Name: "agentenv-" + strings.ReplaceAll(r.Agent, ":", "-"), Labels: map[string]string{labelAgent: r.Agent, labelAgentVersion: r.Version},
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

// InstalledTypes returns those of primitives.Types that this machine is set up for. Types that need no setup
// come first, so the first type works without an engine or an account. InstalledTypes leaves out
// "docker" if neither the configuration of the docker command nor a socket indicates an engine,
// and "modal" without credentials. It makes no connection, so an installed type may still not
// answer.
func InstalledTypes() []string {
	var always, found []string
	for _, typ := range primitives.Types() {
		if d, ok := primitives.NewProvider(typ).(primitives.Detector); !ok {
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
