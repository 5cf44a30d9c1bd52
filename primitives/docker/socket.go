package docker

import (
	"context"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
)

// Whether a guest can move to a socket, see package fastpath, is found out by trying: the
// engine may be in a virtual machine, or may not see the folders of this program.

const (
	// linkDir is where a container has its folder, labelLink says which it is.
	linkDir   = guestDir + "/link"
	labelLink = labelPrefix + "link"
)

// withLink makes a container that has a folder for the socket, or one without if the
// engine cannot mount it.
func withLink(eng *client.Client, name string, cfg config, inside *container.Config, host *container.HostConfig,
	create func() (container.CreateResponse, error),
) (container.CreateResponse, error) {
	if cfg.NoSocket {
		return create()
	}
	folder, fresh, unlock, ok := fastpath.Hold(eng.DaemonHost(), name)
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
			_ = fastpath.Remove(eng.DaemonHost(), name) // empty, and of no use
			return without, nil
		}
	}
	if err != nil && fresh {
		_ = fastpath.Remove(eng.DaemonHost(), name)
	}
	return made, err
}

// linkOf is the folder of an existing container, if it is where this program would
// have made it: the label alone is not trusted.
func linkOf(eng *client.Client, labels map[string]string) string {
	folder := fastpath.Folder(eng.DaemonHost(), labels[labelSandbox])
	if labels[labelLink] != folder {
		return ""
	}
	return folder
}

// expect opens a socket in the folder of a container. Without one the guest stays
// where it is.
func expect(folder string, cfg config) fastpath.Listener {
	if cfg.NoSocket || folder == "" {
		return fastpath.Listener{}
	}
	r, err := fastpath.Listen(folder, linkDir)
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
	if err := fastpath.RemoveOrphans(g.eng.DaemonHost(), exists); err != nil {
		g.errs = append(g.errs, err)
	}
}
