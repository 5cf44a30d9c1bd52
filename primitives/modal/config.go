package modal

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config says how to make a sandbox. Image and Runner are required.
//
// The credentials are those of Modal's own tools: the environment variables
// MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, else those of a profile of ~/.modal.toml.
type Config struct {
	// App is Modal's app that the sandbox belongs to. Empty means "agentenv", which
	// is made if it is missing; any other must exist.
	App string `json:"app,omitempty"`
	// Environment is Modal's environment of the app. Empty means that of the
	// profile.
	Environment string `json:"environment,omitempty"`
	// Profile chooses a profile of ~/.modal.toml. Empty means what MODAL_PROFILE
	// says, else the active one.
	Profile string `json:"profile,omitempty"`
	// Image is the image to run: a registry's tag, such as node:22-bookworm-slim, or
	// the ID of an image of Modal, such as a snapshot: "im-...".
	Image string `json:"image,omitempty"`
	// Dockerfile is built on top of Image: instructions as in a Dockerfile, without
	// FROM, and without COPY of files of this machine, which Modal cannot take. They
	// are built once, and again when they change.
	Dockerfile []string `json:"dockerfile,omitempty"`
	// Name finds the sandbox again, as its ID does. No other live sandbox of the app
	// may have it. Empty means none.
	Name string `json:"name,omitempty"`
	// User runs every command that names no user itself: a name, a number, or
	// "user:group". Empty means root, who reads and writes files in any case; new
	// ones are given to User.
	User string `json:"user,omitempty"`
	// Env is added to the environment that the image and Secrets give to every
	// command, entries and their meaning as in primitives.Command.Env. It is written
	// into the sandbox, and so into its snapshots: what they must not hold is for
	// Secrets, or for the Env of a command.
	Env []string `json:"env,omitempty"`
	// Secrets are names of Modal's secrets, whose variables every command gets.
	Secrets []string `json:"secrets,omitempty"`
	// Workspace is an existing folder of the image or of a volume to work in.
	// Empty means a new one.
	Workspace string `json:"workspace,omitempty"`
	// Volumes are names of Modal's volumes by the absolute path that each is mounted
	// at. One that is missing is made.
	Volumes map[string]string `json:"volumes,omitempty"`
	// CPU is how many processors are reserved, and CPULimit how many may be used
	// at most. Zero means Modal's default, and no limit.
	CPU      float64 `json:"cpu,omitempty"`
	CPULimit float64 `json:"cpu_limit,omitempty"`
	// MemoryMiB is how much memory is reserved, and MemoryLimitMiB how much may be
	// used at most. Zero means Modal's default, and no limit.
	MemoryMiB      int `json:"memory_mib,omitempty"`
	MemoryLimitMiB int `json:"memory_limit_mib,omitempty"`
	// GPU is a kind of graphics processor and how many, such as "T4" or "A100:2".
	GPU string `json:"gpu,omitempty"`
	// Cloud and Regions say where the sandbox may run. Empty means anywhere.
	Cloud   string   `json:"cloud,omitempty"`
	Regions []string `json:"regions,omitempty"`
	// BlockNetwork leaves the sandbox without a network. AllowCIDRs and AllowDomains
	// are all that it may reach otherwise, if there is any of them; a domain may
	// begin with "*.".
	BlockNetwork bool     `json:"block_network,omitempty"`
	AllowCIDRs   []string `json:"allow_cidrs,omitempty"`
	AllowDomains []string `json:"allow_domains,omitempty"`
	// Ports can be reached from the internet, over TLS: see [Sandbox.URLs].
	Ports []int `json:"ports,omitempty"`
	// Ready is awaited before New returns. Nil is nothing beyond the guest.
	Ready *Probe `json:"ready,omitempty"`
	// Tags are added to the sandbox.
	Tags map[string]string `json:"tags,omitempty"`
	// TimeoutSeconds is how old the sandbox becomes at most, whatever it does. Zero
	// means 24 hours, which is as much as there is.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// IdleTimeoutSeconds is for how long the sandbox lives on when no program is
	// connected to it any more. Until Modal has noticed takes a minute more, and
	// another one if the last program died. Zero means 60.
	IdleTimeoutSeconds int `json:"idle_timeout_seconds,omitempty"`
	// Keep lets it live for TimeoutSeconds instead.
	Keep bool `json:"keep,omitempty"`
	// Session is written on the sandbox, for people: the conversation that it is
	// for.
	Session string `json:"session,omitempty"`
	// Runner is the path on this machine of the envrunner program for Modal's
	// machines, which are linux/amd64.
	Runner string `json:"runner,omitempty"`
	// Logger gets what happens to the stream; nil is silence.
	Logger hclog.Logger `json:"-"`
	// Progress is told, in a sentence, what takes longer than a moment, such as
	// building the image. It may be called from any goroutine. Nil tells nobody.
	Progress func(message string) `json:"-"`
	// keepAlive is for tests: see guest.Config.
	keepAlive time.Duration
	// publishTimeout is for tests: 0 means the constant of this name.
	publishTimeout time.Duration
}

// Probe says when a sandbox is ready: when a port takes connections, or when a
// command exits with 0. One of both is required.
type Probe struct {
	Port    int      `json:"port,omitempty"`
	Command []string `json:"command,omitempty"`
	// TimeoutSeconds is how long it may take. Zero means 300.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
}

const (
	defaultApp = "agentenv"
	// maxTimeout is Modal's own limit.
	maxTimeout     = 24 * time.Hour
	defaultIdle    = 60 * time.Second
	minIdle        = 5 * time.Second
	defaultReady   = 300 * time.Second
	maxCPU         = 1 << 10
	minMemoryMiB   = 128 // what Modal takes
	maxMemoryMiB   = 1 << 24
	maxName        = 64
	maxTag         = 63
	maxEnvironment = 32 << 10 // bytes; what Modal takes is not known
)

// Validate says what is wrong with the configuration whatever Modal says: an error
// that is fs.ErrInvalid and names the field and what to do. New does it, too.
func (c Config) Validate() error {
	for _, check := range []func() error{
		c.checkNames, c.checkImage, c.checkResources, c.checkLife, c.checkNetwork, c.checkPlaces, c.checkReady, c.checkTags,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	size := 0
	for _, e := range c.Env {
		size += len(e)
	}
	if size > maxEnvironment {
		return c.invalid("env", fmt.Sprintf("it has %d bytes, more than %d; put some into a secret or a file", size, maxEnvironment))
	}
	return (primitives.Command{Args: []string{"env"}, Env: c.Env, User: c.User}).Check()
}

// invalid is the error of a field: what is wrong with it, and after a semicolon what to do.
func (c Config) invalid(field, wrong string) error {
	return fmt.Errorf("%w: %s: %s", fs.ErrInvalid, field, wrong)
}

// badName is the error of a field whose value is no name.
func (c Config) badName(field, name string) error {
	return c.invalid(field, fmt.Sprintf("%q is no name; use up to 64 letters, digits, and - _ .", name))
}

// validName reports whether something of Modal can have this name.
func validName(s string) bool {
	for _, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && !strings.ContainsRune("-_.", r) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

func (c Config) checkNames() error {
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
	case strings.Count(c.User, ":") > 1:
		return c.invalid("user", fmt.Sprintf("%q has more than one colon; write it as user or user:group, by names or numbers", c.User))
	}
	for _, name := range c.Secrets {
		if !validName(name) {
			return c.badName("secrets", name)
		}
	}
	return nil
}

func (c Config) checkImage() error {
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

func (c Config) checkResources() error {
	within := func(v, low, high float64) bool { return v == 0 || v >= low && v <= high } // not if it is not a number
	switch {
	case !within(c.CPU, 0.001, maxCPU):
		return c.invalid("cpu", fmt.Sprintf("%v is out of range; give a number of processors from 0.001 to %d, or 0 for Modal's default", c.CPU, maxCPU))
	case c.CPULimit != 0 && (c.CPU == 0 || !within(c.CPULimit, c.CPU, maxCPU)):
		return c.invalid("cpu_limit", fmt.Sprintf("%v is out of range, or cpu is missing; give from cpu to %d, and cpu", c.CPULimit, maxCPU))
	case c.MemoryMiB != 0 && (c.MemoryMiB < minMemoryMiB || c.MemoryMiB > maxMemoryMiB):
		return c.invalid("memory_mib", fmt.Sprintf("%d is out of range; give %d to %d, in MiB, or 0 for Modal's default", c.MemoryMiB, minMemoryMiB, maxMemoryMiB))
	case c.MemoryLimitMiB != 0 && (c.MemoryMiB == 0 || c.MemoryLimitMiB < c.MemoryMiB || c.MemoryLimitMiB > maxMemoryMiB):
		return c.invalid("memory_limit_mib", fmt.Sprintf("%d is out of range, or memory_mib is missing; give from memory_mib to %d, and memory_mib", c.MemoryLimitMiB, maxMemoryMiB))
	case c.GPU != "" && !regexp.MustCompile(`^[A-Za-z0-9-]+(:[1-9][0-9]?)?$`).MatchString(c.GPU):
		return c.invalid("gpu", fmt.Sprintf("%q is no GPU; write it as T4 or A100:2", c.GPU))
	}
	return nil
}

func (c Config) checkLife() error {
	switch {
	case c.TimeoutSeconds < 0 || c.TimeoutSeconds > int(maxTimeout/time.Second):
		return c.invalid("timeout_seconds", fmt.Sprintf("%d is out of range; give 1 to %d, or 0 for the longest", c.TimeoutSeconds, int(maxTimeout/time.Second)))
	case c.IdleTimeoutSeconds != 0 && (c.IdleTimeoutSeconds < int(minIdle/time.Second) || c.IdleTimeoutSeconds > int(maxTimeout/time.Second)):
		return c.invalid("idle_timeout_seconds", fmt.Sprintf("%d is out of range; give %d to %d, or set keep", c.IdleTimeoutSeconds, int(minIdle/time.Second), int(maxTimeout/time.Second)))
	case strings.ContainsRune(c.Session, 0):
		return c.invalid("session", "it contains a NUL byte")
	}
	return nil
}

func (c Config) checkNetwork() error {
	if c.BlockNetwork && len(c.AllowCIDRs)+len(c.AllowDomains) > 0 {
		return c.invalid("block_network", "it excludes allow_cidrs and allow_domains; leave it or them out")
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
	for i, p := range c.Ports {
		if p < 1 || p > 65535 {
			return c.invalid(fmt.Sprintf("ports[%d]", i), fmt.Sprintf("%d is no port; give a number from 1 to 65535", p))
		}
		if slices.Contains(c.Ports[:i], p) {
			return c.invalid(fmt.Sprintf("ports[%d]", i), fmt.Sprintf("%d is there twice; leave one out", p))
		}
	}
	return nil
}

func (c Config) checkPlaces() error {
	if c.Workspace != "" && !path.IsAbs(c.Workspace) {
		return c.invalid("workspace", fmt.Sprintf("%q is not absolute; give an absolute path", c.Workspace))
	}
	for at, name := range c.Volumes {
		switch clean := path.Clean(at); {
		case !path.IsAbs(at) || clean == "/" || strings.ContainsRune(at, 0):
			return c.invalid("volumes", fmt.Sprintf("%q cannot be mounted on; give an absolute path other than /", at))
		case within(clean, guestDir) || within(guestDir, clean):
			return c.invalid("volumes", guestDir+" is taken; choose another path")
		case !validName(name):
			return c.badName("volumes", name)
		}
	}
	return nil
}

func (c Config) checkReady() error {
	switch r := c.Ready; {
	case r == nil:
	case (r.Port == 0) == (len(r.Command) == 0):
		return c.invalid("ready", "it needs a port or a command, and not both; give one of them")
	case r.Port < 0 || r.Port > 65535:
		return c.invalid("ready.port", fmt.Sprintf("%d is no port; give a number from 1 to 65535", r.Port))
	case r.TimeoutSeconds < 0:
		return c.invalid("ready.timeout_seconds", "it is negative; give a positive number, or 0 for 300")
	}
	return nil
}

func (c Config) checkTags() error {
	for key, value := range c.Tags {
		if key == "" || len(key) > maxTag || len(value) > maxTag || strings.HasPrefix(key, tagPrefix) || strings.ContainsAny(key+value, "\x00\n") {
			return c.invalid("tags", fmt.Sprintf("%q=%q is no tag; give a name and a value of up to %d bytes in one line, and no name that begins with %q", key, value, maxTag, tagPrefix))
		}
	}
	return nil
}

// within reports whether a clean path is in a folder, or is it.
func within(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

func (c Config) app() string {
	if c.App == "" {
		return defaultApp
	}
	return c.App
}

// timeout is how old the sandbox becomes.
func (c Config) timeout() time.Duration {
	if c.TimeoutSeconds == 0 {
		return maxTimeout
	}
	return time.Duration(c.TimeoutSeconds) * time.Second
}

// idle is how long the sandbox waits for somebody to connect.
func (c Config) idle() time.Duration {
	if c.IdleTimeoutSeconds == 0 {
		return defaultIdle
	}
	return time.Duration(c.IdleTimeoutSeconds) * time.Second
}

func (c Config) progress(message string) {
	if c.Progress != nil {
		c.Progress(message)
	}
}

// tellAfter is how long something may take before somebody is told.
const tellAfter = 2 * time.Second

// tellLater tells what is done if stop is not called soon.
func (c Config) tellLater(message string) (stop func()) {
	told := make(chan struct{})
	timer := time.AfterFunc(tellAfter, func() {
		defer close(told)
		c.progress(message)
	})
	return func() {
		if !timer.Stop() {
			<-told
		}
	}
}

// onVolume reports whether the workspace is on a volume, which no image holds.
func (c Config) onVolume() bool {
	for at := range c.Volumes {
		if c.Workspace != "" && within(path.Clean(c.Workspace), path.Clean(at)) {
			return true
		}
	}
	return false
}
