package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config says how to make a sandbox. Image and Runner are required.
//
// The container's first process is always the guest, which reaps orphans like an
// init, so none can be chosen. Its system calls are always filtered, it never gains
// privileges, and it shares no namespace with its machine or another container.
type Config struct {
	// Host is the address of the engine: "unix:///var/run/docker.sock",
	// "tcp://host:2376" with the certificates that the DOCKER_TLS_VERIFY and
	// DOCKER_CERT_PATH variables name, or "ssh://user@host", which needs an ssh
	// command that asks nothing. Empty means what the docker command would use:
	// the DOCKER_* environment variables, then the current context of its
	// configuration, then the default socket.
	Host string `json:"host,omitempty"`
	// Image is the image to run, by name or ID.
	Image string `json:"image,omitempty"`
	// Pull says when to fetch the image; empty means PullMissing.
	Pull Pull `json:"pull,omitempty"`
	// Platform chooses among the platforms of an image, as in "linux/amd64". Empty
	// means the engine's.
	Platform string `json:"platform,omitempty"`
	// Name is the container's name, and so the sandbox's ID. Empty means a new
	// one.
	Name string `json:"name,omitempty"`
	// User runs everything in the container: a name, a number, or "user:group".
	// Empty means the image's.
	User string `json:"user,omitempty"`
	// Env is added to the environment that the image gives to every command,
	// entries and their meaning as in primitives.Command.Env. Whoever may use
	// the engine can read it, and snapshots hold it: give secrets to the commands
	// that need them.
	Env []string `json:"env,omitempty"`
	// Workspace is an existing folder of the engine's machine to work in instead
	// of one inside the container. It is used in place and never deleted. User
	// must be able to write there: as long as CapAdd does not say otherwise, root
	// in the container can only write what belongs to root.
	Workspace string `json:"workspace,omitempty"`
	// WorkspacePath is the absolute path at which Workspace is in the container,
	// for who wants the paths of both to agree; then it must be the real one. Empty means
	// /workspace.
	WorkspacePath string `json:"workspace_path,omitempty"`
	// Mounts are more folders or files of the engine's machine. Like Workspace, none may
	// be a symbolic link. If another program exchanges one while the sandbox is made, New
	// fails with [ErrFolderChanged]. What would give
	// the container that machine is refused, here and as Workspace: sockets and
	// data of engines, /proc, /sys and /dev (but /dev/shm), and what contains them.
	// Of an engine elsewhere only the names can be looked at.
	Mounts []Mount `json:"mounts,omitempty"`
	// Writable names paths that stay writable although programs of the machine execute
	// what is in them, relative to Workspace and to each of Mounts: ".git/hooks",
	// ".vscode"; "." is all of them. A path below a protected one is refused: name that one.
	// Nil protects all that exist when the sandbox is made:
	// git's configuration, its hooks and the .git of submodules, and the settings of
	// editors and agents are read-only in the container. Nothing is protected on an engine
	// of another machine.
	Writable []string `json:"writable,omitempty"`
	// Ports are published: they can be reached on the engine's machine, see
	// [Sandbox.Ports].
	Ports []Port `json:"ports,omitempty"`
	// Network is "none", or the name of a network. Empty means the network
	// "agentenv", which New makes if the engine has none: sandboxes reach the
	// internet and the engine's machine through it, but not each other. On "bridge",
	// the engine's default network, containers also reach each other.
	Network string `json:"network,omitempty"`
	// CPUs limits the processor time, in processors. Zero means all of the engine's
	// but one, and at least one, where the engine can limit it; negative no limit.
	CPUs float64 `json:"cpus,omitempty"`
	// Memory limits the memory; there is no swap. Zero means 4 GiB, negative no
	// limit.
	Memory primitives.Size `json:"memory,omitempty"`
	// Pids limits the number of processes and threads, of which some fifteen are the
	// guest's for each program that is connected. Zero means 4096, negative no limit;
	// less than 64 is refused.
	Pids int64 `json:"pids,omitempty"`
	// Disk limits what is written to the container's own files; Workspace, Mounts
	// and the folders that are left with ReadOnly do not count. Zero means 20 GiB
	// where the engine can limit it, negative no limit. Few engines can: overlay2
	// needs XFS with project quotas. Others refuse a positive number with
	// errors.ErrUnsupported.
	Disk primitives.Size `json:"disk,omitempty"`
	// ReadOnly makes everything read-only but the sandbox's own folders, which
	// are then a volume that goes with the container, /tmp, which is in memory, and
	// Mounts.
	ReadOnly bool `json:"read_only,omitempty"`
	// CapAdd gives back kernel capabilities, such as "CHOWN": all are taken from
	// the container, also from its root. Commands of another user need "SETUID",
	// "SETGID" and "KILL". Those with which a root can leave the container, such as
	// "SYS_ADMIN", are refused.
	CapAdd []string `json:"cap_add,omitempty"`
	// Seccomp is the path on this machine of a profile, in the engine's format,
	// that says which system calls are allowed. Empty means the engine's own, without
	// set-user-ID and set-group-ID bits where Workspace or Mounts can be written.
	Seccomp string `json:"seccomp,omitempty"`
	// Runtime is the name of a runtime that the engine has, such as "runsc" for gVisor.
	// Empty means the engine's default. One that the engine does not have is
	// fs.ErrNotExist.
	Runtime string `json:"runtime,omitempty"`
	// Labels are added to the container.
	Labels map[string]string `json:"labels,omitempty"`
	// GraceSeconds is for how long the sandbox lives on when no program is
	// connected to it any more. Zero means 60.
	GraceSeconds int `json:"grace_seconds,omitempty"`
	// Keep lets it live until Terminate instead. A container that is ended by
	// something else then stays, ended, with its files, until [Remove].
	Keep bool `json:"keep,omitempty"`
	// ExpiresAfterSeconds bounds Keep: a sandbox that is older is kept no more, and
	// GraceSeconds counts again. Zero means that it is kept for ever; without Keep
	// it says nothing.
	ExpiresAfterSeconds int `json:"expires_after_seconds,omitempty"`
	// Session is written on what is made on the engine, for people: the
	// conversation that it is for.
	Session string `json:"session,omitempty"`
	// Runner is the path on this machine of the envrunner program for the engine's
	// platform, which is the guest in the container. One for another platform is
	// errors.ErrUnsupported.
	Runner string `json:"runner,omitempty"`
	// NoSocket keeps to the streams of the engine. Otherwise a container on this
	// machine gets a folder of this user's, to read, in which the guest finds a
	// socket of this program; it is several times faster, and what does not work
	// is done without.
	NoSocket bool `json:"no_socket,omitempty"`
	// Logger gets what happens to the stream; nil is silence.
	Logger hclog.Logger `json:"-"`
	// Progress is told, in a sentence, what takes longer than a moment, such as
	// fetching the image. It may be called from any goroutine. Nil tells nobody.
	Progress func(message string) `json:"-"`
	// sharedRunner is what New found out: the engine can mount this file of its
	// machine instead of getting a copy of the runner.
	sharedRunner string
	// folders are what New has opened of Workspace and Mounts.
	folders *hostFolders
	// ownFolders: the guest can make its folders itself.
	ownFolders bool
	// building: the container is that of BuildImage.
	building bool
}

// Pull says when an image is fetched from its registry.
type Pull string

// The pull policies.
const (
	PullMissing Pull = "missing" // if the engine does not have it
	PullAlways  Pull = "always"  // every time, for tags that move
	PullNever   Pull = "never"
)

const imageAdvice = "name an image, such as node:22-bookworm-slim"

const (
	minCPUs       = 0.01 // what the engines take
	maxCPUs       = 1 << 16
	defaultMemory = 4 << 30
	minMemory     = 32 << 20 // less does not hold the guest
	defaultPids   = 4096
	defaultDisk   = 20 << 30
	minPids       = 64 // the guests' own threads are counted
	defaultGrace  = 60
)

// check refuses what is wrong whatever the engine says.
func (c Config) check() error {
	switch {
	case c.Image == "" || strings.ContainsAny(c.Image, " \t\n\x00"):
		return c.invalid("image", fmt.Sprintf("%q is no name of an image; %s", c.Image, imageAdvice))
	case c.Pull != "" && c.Pull != PullMissing && c.Pull != PullAlways && c.Pull != PullNever:
		return c.invalid("pull", fmt.Sprintf("%q is no policy; choose missing, always or never", c.Pull))
	case c.Name != "" && !validName(c.Name):
		return c.invalid("name", fmt.Sprintf("%q is no name of a container; use 2 to 128 letters, digits, and . _ - after the first one", c.Name))
	case !(c.CPUs <= 0 || c.CPUs >= minCPUs && c.CPUs <= maxCPUs): // not a number, too
		return c.invalid("cpus", fmt.Sprintf("%v is out of range; give %v to %v, or a negative number for no limit", c.CPUs, minCPUs, maxCPUs))
	case c.Memory > 0 && c.Memory < minMemory:
		return c.invalid("memory", fmt.Sprintf("%d bytes are too few; give at least %dm, or none, which is a negative number, for no limit", c.Memory, minMemory>>20))
	case c.Pids > 0 && c.Pids < minPids:
		return c.invalid("pids", fmt.Sprintf("%d are too few; give at least %d, or a negative number for no limit", c.Pids, minPids))
	case c.GraceSeconds < 0:
		return c.invalid("grace_seconds", "it is negative; give a positive number, or set keep")
	case c.ExpiresAfterSeconds < 0:
		return c.invalid("expires_after_seconds", "it is negative; give a positive number, or 0 to keep the sandbox for ever")
	case strings.ContainsRune(c.Session, 0):
		return c.invalid("session", "it contains a NUL byte")
	case c.Network == "host" || strings.HasPrefix(c.Network, "container:"):
		return c.invalid("network", "a sandbox cannot share a network; choose bridge, none or the name of a network")
	case strings.Count(c.User, ":") > 1:
		return c.invalid("user", fmt.Sprintf("%q has more than one colon; write it as user or user:group, by names or numbers", c.User))
	case c.Workspace != "" && !filepath.IsAbs(c.Workspace):
		return c.invalid("workspace", fmt.Sprintf("%q is not absolute; give an absolute path", c.Workspace))
	}
	if _, err := c.platform(); err != nil {
		return err
	}
	if _, err := reference.ParseAnyReference(c.Image); err != nil {
		return fmt.Errorf("%w: image: %q: %w; %s", fs.ErrInvalid, c.Image, err, imageAdvice)
	}
	for key := range c.Labels {
		if key == "" || strings.HasPrefix(key, labelPrefix) {
			return c.invalid("labels", fmt.Sprintf("%q is empty or begins with %q, which is agentenv's; give another name", key, labelPrefix))
		}
	}
	for _, check := range []func() error{c.checkRunner, c.checkCapabilities, c.checkSeccomp, c.checkTargets, c.checkWritable, c.checkPorts} {
		if err := check(); err != nil {
			return err
		}
	}
	return (primitives.Command{Args: []string{"env"}, Env: c.Env, User: c.User}).Check()
}

// grace is how long the sandbox waits for somebody to connect.
func (c Config) grace() time.Duration {
	if c.GraceSeconds == 0 {
		return defaultGrace * time.Second
	}
	return time.Duration(c.GraceSeconds) * time.Second
}

// expiry is how old a sandbox becomes that is kept.
func (c Config) expiry() time.Duration { return time.Duration(c.ExpiresAfterSeconds) * time.Second }

// invalid is the error of a field: what is wrong with it, and after a semicolon what to do.
func (c Config) invalid(field, wrong string) error {
	return fmt.Errorf("%w: %s: %s", fs.ErrInvalid, field, wrong)
}

// isolation is full where no folder of the engine's machine is in the container.
func (c Config) isolation() primitives.Isolation {
	if c.Workspace != "" || len(c.Mounts) > 0 {
		return primitives.IsolationFolders
	}
	return primitives.IsolationFull
}

// validName reports whether a container can have this name or ID.
func validName(s string) bool {
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return len(s) > 1 && len(s) <= 128
}

// platform splits Platform.
func (c Config) platform() (p [3]string, err error) {
	if c.Platform == "" {
		return p, nil
	}
	parts := strings.Split(c.Platform, "/")
	if len(parts) < 2 || len(parts) > 3 || copy(p[:], parts) == 0 || p[0] == "" || p[1] == "" {
		return p, c.invalid("platform", fmt.Sprintf("%q is no platform; write it as linux/amd64", c.Platform))
	}
	if p[0] != "linux" {
		return p, fmt.Errorf("%w: platform: containers must be linux, not %q", errors.ErrUnsupported, p[0])
	}
	return p, nil
}
