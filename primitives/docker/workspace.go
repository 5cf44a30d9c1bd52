package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/hostfile"
)

// The workspace is at one path in all containers, because programs in it store that path.
const (
	workspaceDir = "/workspace" // the default of WorkspacePath
	// volumeWorkspace is its path in a container whose own files are read-only: a folder of the guest's
	// volume. A volume at workspaceDir would belong to root.
	volumeWorkspace = guestDir + "/workspace"
)

// checkWorkspacePath refuses an invalid WorkspacePath.
func (c config) checkWorkspacePath() error {
	const field = "workspace_path"
	target := path.Clean(c.WorkspacePath)
	switch {
	case c.WorkspacePath == "":
		return nil
	case !path.IsAbs(target) || target == "/" || strings.ContainsRune(target, 0):
		return c.invalid(field, fmt.Sprintf("%q cannot be the workspace; give an absolute path other than /", c.WorkspacePath))
	case systemFolder(target):
		return c.invalid(field, "/proc, /sys and /dev are the container's own; choose another path")
	case c.Workspace == "" && c.ReadOnly && target == volumeWorkspace:
		return nil
	case c.Workspace == "" && c.ReadOnly:
		return c.invalid(field, "a read_only container has its workspace in its volume, at "+volumeWorkspace+"; leave it out, or name a folder as workspace")
	case hostfile.Within(target, guestDir):
		return c.invalid(field, guestDir+" is taken; choose another path")
	}
	return nil
}

// workspaceTarget returns the path of the workspace in the container.
func (c config) workspaceTarget() string {
	switch {
	case c.WorkspacePath != "":
		return path.Clean(c.WorkspacePath)
	case c.Workspace == "" && c.guestInVolume():
		return volumeWorkspace
	}
	return workspaceDir
}

// checkWorkspaceAt refuses a WorkspacePath that is not the path at which a container of a snapshot has its
// workspace.
func (c config) checkWorkspaceAt(at string) error {
	if c.Workspace != "" || c.WorkspacePath == "" || path.Clean(c.WorkspacePath) == at {
		return nil
	}
	return c.invalid("workspace_path", fmt.Sprintf("the snapshot %s has its workspace at %s; leave it out", c.Image, at))
}

// workspaceHeader returns the folder of the workspace for a container whose guest cannot make it. It
// belongs to the container's user: programs such as git refuse a folder of another user.
func workspaceHeader(ctx context.Context, eng *client.Client, id string, cfg config) *tar.Header {
	h := &tar.Header{Name: cfg.workspaceTarget(), Mode: 0o755, Typeflag: tar.TypeDir}
	name, group, _ := strings.Cut(cfg.runsAs, ":")
	uid, err := strconv.Atoi(name)
	gid := 0
	if err != nil {
		// An unknown name is an error of the engine when it starts the container.
		uid, gid, _ = lookUser(ctx, eng, id, name)
	}
	if number, err := strconv.Atoi(group); err == nil {
		gid = number
	}
	h.Uid, h.Gid = uid, gid
	return h
}

// lookUser looks up a user in the files of a container.
func lookUser(ctx context.Context, eng *client.Client, id, name string) (uid, gid int, err error) {
	if name == "" || name == "root" {
		return 0, 0, nil
	}
	passwd, err := fileOf(ctx, eng, id, "/etc/passwd")
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = passwd.Close() }() // it was only read
	lines := bufio.NewScanner(passwd)
	for lines.Scan() {
		// name:password:UID:GID:...
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		uid, uerr := strconv.Atoi(fields[2])
		gid, gerr := strconv.Atoi(fields[3])
		return uid, gid, errors.Join(uerr, gerr)
	}
	return 0, 0, errors.Join(lines.Err(), fmt.Errorf("no user %s", name))
}

// fileOf opens a file of a container that need not run.
func fileOf(ctx context.Context, eng *client.Client, id, name string) (io.ReadCloser, error) {
	packed, stat, err := eng.CopyFromContainer(ctx, id, name)
	if err == nil && stat.LinkTarget != "" && stat.LinkTarget != name {
		_ = packed.Close() // the archive of a link has no content
		packed, _, err = eng.CopyFromContainer(ctx, id, stat.LinkTarget)
	}
	if err != nil {
		return nil, err
	}
	r := tar.NewReader(packed)
	if _, err := r.Next(); err != nil {
		return nil, errors.Join(err, packed.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, packed}, nil
}
