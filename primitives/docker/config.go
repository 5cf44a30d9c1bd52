package docker

import (
	"cmp"
	"context"
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

// Provider makes sandboxes in containers of a Docker engine. Its fields are the settings that only
// containers have. The zero value uses the engine that the docker command would use.
//
// The container's first process is always the guest. It reaps orphans like an init, so there is no
// setting for one. The container's system calls are always filtered, it never gains privileges, and
// it shares no namespace with its machine or another container.
type Provider struct {
	// Host is the address of the engine: "unix:///var/run/docker.sock", "tcp://host:2376" with the
	// certificates that the DOCKER_TLS_VERIFY and DOCKER_CERT_PATH variables name, or
	// "ssh://user@host", which needs an ssh command that does not prompt. Empty means what the
	// docker command would use: the DOCKER_* environment variables, then the current context of its
	// configuration, then the default socket.
	Host string `json:"host,omitempty"`
	// Pull says when to fetch the image; empty means PullMissing.
	Pull Pull `json:"pull,omitempty"`
	// Platform chooses among the platforms of an image, as in "linux/amd64". Empty means the
	// engine's platform.
	Platform string `json:"platform,omitempty"`
	// Mounts are folders or files of the engine's machine, besides Spec.Workspace. A source must
	// not be a symbolic link. If another program exchanges a source while the sandbox is made,
	// Create fails with [ErrFolderChanged]. Sources that would give the container control of the
	// machine are refused, also as the workspace: sockets and data of engines, /proc, /sys and /dev
	// (except /dev/shm), and folders that contain them. For an engine on another machine only the
	// names are checked.
	Mounts []Mount `json:"mounts,omitempty"`
	// Writable names paths that stay writable although programs of the machine execute what is in
	// them, such as ".git/hooks" and ".vscode". They are relative to the workspace and to each of
	// Mounts; "." means everything. A path below a protected one is refused: name the protected
	// one. Nil protects all such paths that exist when the sandbox is made: git's configuration,
	// its hooks and the .git of submodules, and the settings of editors and agents are read-only in
	// the container. Nothing is protected on an engine of another machine.
	Writable []string `json:"writable,omitempty"`
	// Publish publishes ports of the container at chosen addresses of the engine's machine.
	// Spec.Ports are published at free ports of 127.0.0.1.
	Publish []Port `json:"publish,omitempty"`
	// Pids limits the number of processes and threads. The guest needs about fifteen
	// for each connected client. Zero means 4096, negative no limit; values
	// below 64 are refused.
	Pids int64 `json:"pids,omitempty"`
	// Disk limits what is written to the container's own files. The workspace, Mounts and the
	// folders that stay writable with ReadOnly do not count. Zero means 20 GiB if the engine can
	// limit it, negative no limit. Few engines can: overlay2 needs XFS with project quotas. Other
	// engines refuse a positive number with errors.ErrUnsupported.
	Disk primitives.Size `json:"disk,omitempty"`
	// ReadOnly makes everything read-only except Mounts, /tmp, which is then in memory, and the
	// sandbox's own folders, which are then a volume that is removed with the container.
	ReadOnly bool `json:"read_only,omitempty"`
	// CapAdd adds kernel capabilities, such as "CHOWN". Without it the container has none, even as
	// root. Commands of another user need "SETUID", "SETGID" and "KILL". Capabilities with which
	// root can leave the container, such as "SYS_ADMIN", are refused.
	CapAdd []string `json:"cap_add,omitempty"`
	// Seccomp is the path on this machine of a seccomp profile in the engine's format. Empty means
	// the engine's own profile. If the workspace or Mounts can be written, that profile also
	// refuses to set set-user-ID and set-group-ID bits.
	Seccomp string `json:"seccomp,omitempty"`
	// Runtime is the name of a runtime of the engine, such as "runsc" for gVisor. Empty means the
	// engine's default. A runtime that the engine does not have is fs.ErrNotExist.
	Runtime string `json:"runtime,omitempty"`
	// NoSocket makes the guest use only the streams of the engine. Otherwise a container on this
	// machine gets a read-only folder of this user, in which the guest finds a socket of this
	// program. The socket is several times faster. If the engine or the guest cannot use it, the
	// streams remain.
	NoSocket bool `json:"no_socket,omitempty"`

	// Runner returns the path on this machine of the envrunner program for the engine's platform,
	// for example bundle.Find. That program is the guest in the container. Create needs it, and so
	// does Attach for a sandbox of another release.
	Runner func(ctx context.Context, goos, goarch string) (string, error) `json:"-"`
	// Logger takes diagnostics; nil means silence.
	Logger hclog.Logger `json:"-"`
	// Progress gets a sentence about each operation that takes longer than a moment, such as
	// fetching the image. It may be called from any goroutine. Nil means silence.
	Progress func(message string) `json:"-"`
}

// The defaults of the settings in [primitives.Spec]: Network is "agentenv", which Create makes if
// the engine has none. Through it sandboxes reach the internet and the engine's machine, but not
// each other. CPUs are all processors of the engine except one, and at least one, if the engine can
// limit them. Memory is 4 GiB; there is no swap. Grace is a minute. WorkspacePath is /workspace.
const (
	minCPUs       = 0.01 // the engines' minimum
	maxCPUs       = 1 << 16
	defaultMemory = 4 << 30
	minMemory     = 32 << 20 // less does not hold the guest
	defaultPids   = 4096
	defaultDisk   = 20 << 30
	minPids       = 64 // the guests' own threads count
	defaultGrace  = time.Minute
)

// config holds all settings of a sandbox.
type config struct {
	primitives.Spec
	Provider
	// Runner is the path that Provider.Runner returned.
	Runner string `json:"runner,omitempty"`
	// RunnerSum is the digest of the runner in the container. It is empty if the container mounts the
	// runner, or if an older release has made it.
	RunnerSum string `json:"runner_sum,omitempty"`
	// sharedRunner is a file of the engine's machine that the engine can mount instead of getting a
	// copy of the runner. Create sets it.
	sharedRunner string
	// folders are the opened Workspace and Mounts.
	folders *hostFolders
	// runsAs is the container's user, in the form of User. ownFolders says that the guest can make its
	// folders itself, because it is root. Create sets both.
	runsAs     string
	ownFolders bool
	// building says that the container builds an image.
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

// check refuses settings that are wrong for every engine.
func (c config) check() error {
	switch {
	case c.Image == "" || strings.ContainsAny(c.Image, " \t\n\x00"):
		return c.invalid("image", fmt.Sprintf("%q is no name of an image; %s", c.Image, imageAdvice))
	case c.Pull != "" && c.Pull != PullMissing && c.Pull != PullAlways && c.Pull != PullNever:
		return c.invalid("pull", fmt.Sprintf("%q is no policy; choose missing, always or never", c.Pull))
	case c.Name != "" && !validName(c.Name):
		return c.invalid("name", fmt.Sprintf("%q is no name of a container; use 2 to 128 letters, digits, and . _ - after the first one", c.Name))
	case !(c.CPUs <= 0 || c.CPUs >= minCPUs && c.CPUs <= maxCPUs): // also refuses NaN
		return c.invalid("cpus", fmt.Sprintf("%v is out of range; give %v to %v, or a negative number for no limit", c.CPUs, minCPUs, maxCPUs))
	case c.Memory > 0 && c.Memory < minMemory:
		return c.invalid("memory", fmt.Sprintf("%d bytes are too few; give at least %dm, or none, which is a negative number, for no limit", c.Memory, minMemory>>20))
	case c.Pids > 0 && c.Pids < minPids:
		return c.invalid("pids", fmt.Sprintf("%d are too few; give at least %d, or a negative number for no limit", c.Pids, minPids))
	case c.Network == "host" || strings.HasPrefix(c.Network, "container:"):
		return c.invalid("network", "a sandbox cannot share a network; choose bridge, none or the name of a network")
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
	for _, check := range []func() error{c.Check, c.checkCapabilities, c.checkSeccomp, c.checkTargets, c.checkWritable, c.checkPorts} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// grace returns how long the sandbox lives without a client.
func (c config) grace() time.Duration {
	return cmp.Or(c.Grace, defaultGrace)
}

// invalid returns the error of a setting: what is wrong with it and, after a semicolon, what to do.
func (c config) invalid(field, wrong string) error {
	return &primitives.SettingError{Setting: field, Problem: wrong, Err: fs.ErrInvalid}
}

// isolation returns IsolationFull if no folder of the engine's machine is in the container.
func (c config) isolation() primitives.Isolation {
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

// platform returns the parts of Platform.
func (c config) platform() (p [3]string, err error) {
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
