package modal

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Provider creates sandboxes at Modal. Its fields are the settings that only Modal has. The
// zero value uses the default app of the active profile.
//
// The credentials are those of Modal's own tools: the environment variables
// MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, else those of a profile of ~/.modal.toml.
//
// In [primitives.Spec], an empty WorkspacePath means /workspace. Image is a registry's tag, such as node:22-bookworm-slim, or the ID of
// a Modal image, such as a snapshot: "im-...". An empty User means root. Files are always read
// and written as root; new files belong to User. Network is "none" or empty. A zero Grace means
// one minute. Modal ends the sandbox about a minute after the grace period, and about two
// minutes after it if the last client was killed. Expires limits a kept sandbox, to at most 24
// hours. Ports can be reached from the internet, over TLS. Labels become Modal's tags.
type Provider struct {
	// App is Modal's app that the sandbox belongs to. Empty means "agentenv", which is created
	// if it is missing; any other must exist.
	App string `json:"app,omitempty"`
	// Environment is Modal's environment of the app. Empty means the profile's environment.
	Environment string `json:"environment,omitempty"`
	// Profile chooses a profile of ~/.modal.toml. Empty means the profile that MODAL_PROFILE
	// names, else the active one.
	Profile string `json:"profile,omitempty"`
	// Dockerfile is built on top of the image: instructions as in a Dockerfile, without FROM,
	// and without COPY of files of this machine, which Modal does not support. Modal builds
	// them once, and again when they change.
	Dockerfile []string `json:"dockerfile,omitempty"`
	// Secrets names Modal's secrets. Every command gets their variables.
	Secrets []string `json:"secrets,omitempty"`
	// Volumes maps absolute mount paths to names of Modal's volumes. Missing volumes are
	// created.
	Volumes map[string]string `json:"volumes,omitempty"`
	// ReserveCPUs and ReserveMemory are reserved for the sandbox. Zero means Modal's default,
	// but not more than the limits Spec.CPUs and Spec.Memory.
	ReserveCPUs   float64         `json:"reserve_cpus,omitempty"`
	ReserveMemory primitives.Size `json:"reserve_memory,omitempty"`
	// GPU is a kind of graphics processor with an optional count, such as "T4" or "A100:2".
	GPU string `json:"gpu,omitempty"`
	// Cloud and Regions restrict where the sandbox may run. Empty means anywhere.
	Cloud   string   `json:"cloud,omitempty"`
	Regions []string `json:"regions,omitempty"`
	// AllowCIDRs and AllowDomains, if any is set, are the only destinations that the sandbox
	// may reach. A domain may begin with "*.".
	AllowCIDRs   []string `json:"allow_cidrs,omitempty"`
	AllowDomains []string `json:"allow_domains,omitempty"`
	// Ready is a probe that Create waits for. Nil means that Create waits for the guest only.
	Ready *Probe `json:"ready,omitempty"`
	// Timeout is the maximum age of the sandbox, also while it is in use. Zero means 24 hours,
	// which is Modal's limit.
	Timeout time.Duration `json:"timeout,omitempty"`

	// Runner returns the path on this machine of the envrunner program for Modal's machines,
	// which are linux/amd64, for example bundle.Find. Create and Fork need it.
	Runner func(ctx context.Context, goos, goarch string) (string, error) `json:"-"`
	// Logger logs events of the guest's stream. Nil disables logging.
	Logger hclog.Logger `json:"-"`
	// Progress is called with a sentence about each slow step, such as building the image. It
	// may be called from any goroutine. Nil disables it.
	Progress func(message string) `json:"-"`
}

// config is the complete configuration of a sandbox.
type config struct {
	primitives.Spec
	Provider
	// Runner is the path that Provider.Runner returned.
	Runner string `json:"runner,omitempty"`
	// keepAlive is for tests: the KeepAlive of both ends, see guest.Config.
	keepAlive time.Duration
	// publishTimeout is for tests: 0 means the constant publishTimeout.
	publishTimeout time.Duration
}

// Probe defines when a sandbox is ready: when a port accepts connections, or when a command
// exits with 0. Exactly one of Port and Command is required.
type Probe struct {
	Port    int      `json:"port,omitempty"`
	Command []string `json:"command,omitempty"`
	// Timeout is how long the sandbox may take to become ready. Zero means 5 minutes.
	Timeout time.Duration `json:"timeout,omitempty"`
}

const (
	defaultApp = "agentenv"
	// maxTimeout is Modal's own limit.
	maxTimeout     = 24 * time.Hour
	defaultIdle    = 60 * time.Second
	minIdle        = 5 * time.Second
	defaultReady   = 300 * time.Second
	maxCPU         = 1 << 10
	reservedCPUs   = 0.125     // Modal's own default
	minMemory      = 128 << 20 // Modal's minimum, which is also its default
	maxMemory      = 1 << 44
	maxName        = 64
	maxTag         = 63
	maxEnvironment = 32 << 10 // bytes; Modal's own limit is not documented
)

// check validates the configuration without asking Modal. The error is fs.ErrInvalid, names the
// field, and says what to do.
func (c config) check() error {
	for _, check := range []func() error{
		c.Check, c.checkNames, c.checkImage, c.checkResources, c.checkLife, c.checkNetwork, c.checkPlaces, c.checkReady, c.checkTags,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	size := 0
	for _, e := range c.Environ() {
		size += len(e)
	}
	if size > maxEnvironment {
		return c.invalid("env", fmt.Sprintf("it has %d bytes, more than %d; put some into a secret or a file", size, maxEnvironment))
	}
	if c.Workspace != "" && c.WorkspacePath != c.Workspace {
		return c.Refuse("a sandbox at Modal works in the workspace itself; leave it out", "workspace_path")
	}
	return nil
}

// workspaceDir is the default of Spec.WorkspacePath: one path in all sandboxes, because programs in the
// workspace store it.
const workspaceDir = "/workspace"

// workspacePath returns the path of the workspace.
func (c config) workspacePath() string {
	return path.Clean(cmp.Or(c.Workspace, c.WorkspacePath, workspaceDir))
}

// invalid returns the error of a field: the problem and, after a semicolon, what to do.
func (c config) invalid(field, wrong string) error {
	return &primitives.SettingError{Setting: field, Problem: wrong, Err: fs.ErrInvalid}
}

// badName returns the error of a field whose value is not a valid name.
func (c config) badName(field, name string) error {
	return c.invalid(field, fmt.Sprintf("%q is no name; use up to 64 letters, digits, and - _ .", name))
}

// validName reports whether Modal allows s as a name or ID.
func validName(s string) bool {
	for _, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && !strings.ContainsRune("-_.", r) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

func (c config) checkNames() error {
	switch {
	case c.App != "" && !validName(c.App):
		return c.badName("app", c.App)
	case c.Environment != "" && !validName(c.Environment):
		return c.badName("environment", c.Environment)
	case c.Name != "" && !validName(c.Name):
		return c.badName("name", c.Name)
	case strings.HasPrefix(c.Name, sandboxPrefix):
		return c.invalid("name", "it begins with "+sandboxPrefix+", as IDs do; choose another one")
	case c.Runner == "":
		return c.invalid("runner", "it is empty; name the envrunner program for linux/amd64")
	}
	for _, name := range c.Secrets {
		if !validName(name) {
			return c.badName("secrets", name)
		}
	}
	return nil
}

func (c config) checkImage() error {
	if c.Image == "" || strings.ContainsAny(c.Image, " \t\r\n\x00") {
		return c.invalid("image", fmt.Sprintf("%q is no name of an image; name one, such as node:22-bookworm-slim, or give an ID, such as im-...", c.Image))
	}
	for i, line := range c.Dockerfile {
		field := fmt.Sprintf("dockerfile[%d]", i)
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word = strings.ToUpper(word); {
		case strings.ContainsRune(line, 0):
			return c.invalid(field, "it contains a NUL byte")
		case word == "FROM":
			return c.invalid(field, "the base is not named by FROM; name it in image")
		case (word == "COPY" || word == "ADD") && !strings.HasPrefix(strings.TrimSpace(rest), "--from=") && !strings.Contains(rest, "://"):
			return c.invalid(field, "Modal takes no files of this machine; write them into the sandbox, or make them in a RUN instruction")
		}
	}
	return nil
}

func (c config) checkResources() error {
	cpuLimit, reserved := max(c.CPUs, 0), c.ReserveCPUs
	limit, reserve := max(c.Memory, 0), c.ReserveMemory
	switch {
	case !(reserved == 0 || reserved >= 0.001 && reserved <= maxCPU): // also rejects NaN
		return c.invalid("reserve_cpus", fmt.Sprintf("%v is out of range; give a number of processors from 0.001 to %d, or 0 for Modal's default", reserved, maxCPU))
	case !(cpuLimit == 0 || cpuLimit >= max(reserved, 0.001) && cpuLimit <= maxCPU):
		return c.invalid("cpus", fmt.Sprintf("%v is out of range; give a number of processors from 0.001, or reserve_cpus, to %d", c.CPUs, maxCPU))
	case reserve != 0 && (reserve < minMemory || reserve > maxMemory):
		return c.invalid("reserve_memory", fmt.Sprintf("%d bytes are out of range; give at least %dm, or 0 for Modal's default", reserve, minMemory>>20))
	case limit != 0 && (limit < max(reserve, minMemory) || limit > maxMemory):
		return c.invalid("memory", fmt.Sprintf("%d bytes are out of range; give at least %dm, and reserve_memory", limit, minMemory>>20))
	case c.GPU != "" && !regexp.MustCompile(`^[A-Za-z0-9-]+(:[1-9][0-9]?)?$`).MatchString(c.GPU):
		return c.invalid("gpu", fmt.Sprintf("%q is no GPU; write it as T4 or A100:2", c.GPU))
	}
	return nil
}

func (c config) checkLife() error {
	switch {
	case c.Timeout != 0 && (c.Timeout < time.Second || c.Timeout > maxTimeout):
		return c.invalid("timeout", fmt.Sprintf("%v is out of range; give 1s to %v, or 0 for the longest", c.Timeout, maxTimeout))
	case c.Grace != 0 && (c.Grace < minIdle || c.Grace > maxTimeout):
		return c.invalid("grace", fmt.Sprintf("%v is out of range; give %v to %v, or set keep", c.Grace, minIdle, maxTimeout))
	case c.Expires > maxTimeout:
		return c.invalid("expires", fmt.Sprintf("%v is more than Modal has; give %v at most", c.Expires, maxTimeout))
	}
	return nil
}

func (c config) checkNetwork() error {
	switch {
	case c.Network != "" && c.Network != "none":
		return c.Refuse(fmt.Sprintf("there is no network %q at Modal; give none, or leave it out", c.Network), "network")
	case c.Network == "none" && len(c.AllowCIDRs)+len(c.AllowDomains) > 0:
		return c.invalid("network", "none excludes allow_cidrs and allow_domains; leave it or them out")
	}
	for _, s := range c.AllowCIDRs {
		if _, err := netip.ParsePrefix(s); err != nil {
			return c.invalid("allow_cidrs", fmt.Sprintf("%q is no range of addresses; write it as 10.1.0.0/16", s))
		}
	}
	for _, s := range c.AllowDomains {
		if !regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`).MatchString(s) {
			return c.invalid("allow_domains", fmt.Sprintf("%q is no domain; write it as example.com or *.example.com", s))
		}
	}
	return nil
}

func (c config) checkPlaces() error {
	if c.Workspace != "" && !path.IsAbs(c.Workspace) {
		return c.invalid("workspace", fmt.Sprintf("%q is not absolute; give an absolute path", c.Workspace))
	}
	workspace := c.workspacePath()
	switch {
	case c.Workspace != "":
	case !path.IsAbs(workspace) || workspace == "/" || strings.ContainsRune(workspace, 0):
		return c.invalid("workspace_path", fmt.Sprintf("%q cannot be the workspace; give an absolute path other than /", c.WorkspacePath))
	case within(workspace, guestDir) || within(guestDir, workspace):
		return c.invalid("workspace_path", guestDir+" is taken; choose another path")
	}
	for at, name := range c.Volumes {
		switch clean := path.Clean(at); {
		case !path.IsAbs(at) || clean == "/" || strings.ContainsRune(at, 0):
			return c.invalid("volumes", fmt.Sprintf("%q cannot be mounted on; give an absolute path other than /", at))
		case within(clean, guestDir) || within(guestDir, clean):
			return c.invalid("volumes", guestDir+" is taken; choose another path")
		case c.Workspace == "" && (within(clean, workspace) || within(workspace, clean)):
			// What a new sandbox restores replaces all files of the workspace.
			return c.invalid("volumes", workspace+" is taken by the workspace; choose another path, set workspace_path, or name the folder as workspace")
		case !validName(name):
			return c.badName("volumes", name)
		}
	}
	return nil
}

func (c config) checkReady() error {
	switch r := c.Ready; {
	case r == nil:
	case (r.Port == 0) == (len(r.Command) == 0):
		return c.invalid("ready", "it needs a port or a command, and not both; give one of them")
	case r.Port < 0 || r.Port > 65535:
		return c.invalid("ready.port", fmt.Sprintf("%d is no port; give a number from 1 to 65535", r.Port))
	case r.Timeout < 0:
		return c.invalid("ready.timeout", "it is negative; give a positive duration, or 0 for 5m")
	}
	return nil
}

func (c config) checkTags() error {
	for key, value := range c.Labels {
		if key == "" || len(key) > maxTag || len(value) > maxTag || strings.HasPrefix(key, tagPrefix) || strings.ContainsAny(key+value, "\x00\n") {
			return c.invalid("labels", fmt.Sprintf("%q=%q is no label; give a name and a value of up to %d bytes in one line, and no name that begins with %q", key, value, maxTag, tagPrefix))
		}
	}
	return nil
}

// within reports whether the clean path p is folder or inside it.
func within(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

func (c Provider) app() string {
	if c.App == "" {
		return defaultApp
	}
	return c.App
}

// timeout returns the maximum age of the sandbox.
func (c config) timeout() time.Duration {
	life := cmp.Or(c.Timeout, maxTimeout)
	if c.Keep && c.Expires > 0 {
		life = min(life, max(c.Expires, time.Second))
	}
	return life
}

// cpus returns how many processors are reserved, and the limit. Zero means Modal's default.
func (c config) cpus() (reserve, limit float64) {
	if c.CPUs <= 0 {
		return c.ReserveCPUs, 0
	}
	return cmp.Or(c.ReserveCPUs, min(reservedCPUs, c.CPUs)), c.CPUs
}

// memory returns how many MiB are reserved, and the limit. Zero means Modal's default.
func (c config) memory() (reserve, limit int) {
	if c.Memory <= 0 {
		return int(c.ReserveMemory >> 20), 0
	}
	return int(cmp.Or(c.ReserveMemory, minMemory) >> 20), int(c.Memory >> 20)
}

// idle returns how long the sandbox lives without a client: the grace period.
func (c config) idle() time.Duration {
	return cmp.Or(c.Grace, defaultIdle)
}

func (c Provider) progress(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
}

// progressDelay is how long a step may take before its progress is reported.
const progressDelay = 2 * time.Second

// progressAfter reports message as progress unless stop is called within progressDelay.
func (c Provider) progressAfter(message string) (stop func()) {
	told := make(chan struct{})
	timer := time.AfterFunc(progressDelay, func() {
		defer close(told)
		c.progress(message)
	})
	return func() {
		if !timer.Stop() {
			<-told
		}
	}
}

// onVolume reports whether the workspace is on a volume. An image does not contain volumes.
func (c config) onVolume() bool {
	for at := range c.Volumes {
		if c.Workspace != "" && within(path.Clean(c.Workspace), path.Clean(at)) {
			return true
		}
	}
	return false
}
