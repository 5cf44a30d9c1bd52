package docker

import (
	"context"
	"os"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Where a container and this program are on the same kernel the guest can move to a
// Unix socket, see guest.Socket. The socket is in a folder of the host, one for each
// container, that the container has at linkDir and can only read: nothing that the
// container does makes the host follow a path. There is a socket in it only while
// a guest is expected. Whether it works is found out by trying: the engine may be in
// a virtual machine, or may not see the folders of this program.

const (
	// linkDir is where a container has its folder, labelLink says which it is.
	linkDir   = guestDir + "/link"
	labelLink = labelPrefix + "link"
)

// withLink makes a container that has a folder for the socket, or one without if the
// engine cannot mount it.
func withLink(eng *client.Client, name string, cfg Config, inside *container.Config, host *container.HostConfig,
	create func() (container.CreateResponse, error),
) (container.CreateResponse, error) {
	folder, fresh, unlock, ok := holdLink(eng, name, cfg)
	if !ok {
		return create()
	}
	defer unlock() // then there is a container
	mounts := host.Mounts
	host.Mounts = append(mounts, mount.Mount{Type: mount.TypeBind, Source: folder, Target: linkDir, ReadOnly: true})
	inside.Labels[labelLink] = folder
	made, err := create()
	if cerrdefs.IsInvalidArgument(err) {
		host.Mounts = mounts
		inside.Labels[labelLink] = ""
		if without, werr := create(); werr == nil {
			_ = dropLink(eng, name) // empty, and of no use
			return without, nil
		}
	}
	if err != nil && fresh {
		_ = dropLink(eng, name)
	}
	return made, err
}

// linkOf is the folder of an existing container, if it is where this program would
// have made it: the label alone is not trusted.
func linkOf(eng *client.Client, labels map[string]string) string {
	folder := linkFolder(eng, labels[labelSandbox])
	if labels[labelLink] != folder {
		return ""
	}
	return folder
}

// rendezvous is where a guest is expected.
type rendezvous struct {
	socket *guest.Socket // nil if it is not
	folder *os.File      // that the socket is in
}

// close is for when the guest has answered.
func (r rendezvous) close() {
	if r.folder != nil {
		_ = r.folder.Close() // it was only looked at
	}
}

// expect opens a socket in the folder of a container. Without one the guest stays
// where it is.
func expect(folder string, cfg Config) rendezvous {
	if cfg.NoSocket || folder == "" {
		return rendezvous{}
	}
	r, err := listen(folder)
	if err != nil && cfg.Logger != nil {
		cfg.Logger.Debug("no socket for the guest", "error", err)
	}
	return r
}

// links removes the folders of containers that are gone.
func (g *collector) links(ctx context.Context, found []container.Summary) {
	if g.opts.DryRun {
		return
	}
	exist := make(map[string]bool, len(found))
	for _, c := range found {
		exist[c.Labels[labelSandbox]] = true
	}
	// What was made since the list was is asked for.
	exists := func(name string) bool {
		if exist[name] {
			return true
		}
		_, err := g.eng.ContainerInspect(ctx, name)
		return !cerrdefs.IsNotFound(err)
	}
	if err := dropLinks(g.eng, exists); err != nil {
		g.errs = append(g.errs, err)
	}
}
