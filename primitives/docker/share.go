package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
)

// An engine of this machine need not be sent the runner: it can mount the file. That
// saves copying, and all guests have one copy of their program in memory. Whether the
// engine sees the same files is found out by trying.

// sharedRunner is the path of the runner for the engine; empty if it is to be copied.
func sharedRunner(eng *client.Client, runner string) string {
	if !strings.HasPrefix(eng.DaemonHost(), "unix://") || runner == "" {
		return ""
	}
	file, err := filepath.Abs(runner)
	if err != nil {
		return ""
	}
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return ""
	}
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o555 != 0o555 || !executableThere(file) {
		return "" // not for every user of a container
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		return "" // it would have to get another label
	}
	return file
}

// mayBeMounts reports whether a container could not be made or started because the
// engine does not have, or may not mount, what this package has it mount, for all
// that the error says: engines have no kind of error for that.
func mayBeMounts(err error) bool {
	known := errors.Is(err, primitives.ErrUnknownUser) || errors.Is(err, fs.ErrExist) || errors.Is(err, errors.ErrUnsupported)
	return !known && (cerrdefs.IsInvalidArgument(err) || cerrdefs.IsInternal(err))
}

// runnerMount mounts it where install would copy it to.
func runnerMount(file string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: file, Target: guestProgram, ReadOnly: true}
}

// mountedRunner is the path that an existing container was given; empty for one with
// a copy.
func mountedRunner(mounts []container.MountPoint) string {
	for _, m := range mounts {
		if m.Destination == guestProgram {
			return m.Source
		}
	}
	return ""
}

// makesFolders reports whether the guest can make its folders itself, which are to be
// used by nobody else: it is root, and can become nobody else.
func (c Config) makesFolders(img image.InspectResponse) bool {
	user := c.User
	if user == "" && img.Config != nil {
		user = img.Config.User
	}
	name, _, _ := strings.Cut(user, ":")
	return len(c.CapAdd) == 0 && (name == "" || name == "0" || name == "root")
}
