package testdocker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

// leftovers waits until no containers and volumes of this run exist. After a minute it removes
// them and returns an error. The engine forgets a container before it removes its volumes. The
// networks are those that were there before the run.
func leftovers(ctx context.Context, eng *client.Client, networks []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := eng.ContainerList(ctx, container.ListOptions{
			All: true, Filters: filters.NewArgs(filters.Arg("label", runLabel+"="+os.Getenv(runVariable))),
		})
		if err != nil {
			return err
		}
		volumes, err := volumesOfThisRun(ctx, eng)
		if err != nil {
			return err
		}
		if len(left)+len(volumes) == 0 {
			return errors.Join(leftNetworks(ctx, eng, networks), leftImages(ctx, eng))
		}
		select {
		case <-tick.C:
			continue
		case <-patience.C:
		}
		for _, c := range left {
			err = errors.Join(err, fmt.Errorf("container %s (%s) was left, %s", c.Names, c.Image, c.Status),
				eng.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
		}
		if len(left) == 0 {
			return errors.Join(leftVolumes(ctx, eng), leftImages(ctx, eng))
		}
		return err
	}
}

func volumesOfThisRun(ctx context.Context, eng *client.Client) ([]*volume.Volume, error) {
	found, err := eng.VolumeList(ctx, volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", runLabel+"="+os.Getenv(runVariable))),
	})
	return found.Volumes, err
}

// leftVolumes removes the volumes of this run, and returns an error if there are any.
func leftVolumes(ctx context.Context, eng *client.Client) error {
	left, err := volumesOfThisRun(ctx, eng)
	if err != nil {
		return err
	}
	for _, v := range left {
		err = errors.Join(err, fmt.Errorf("volume %s was left", v.Name))
		if rerr := eng.VolumeRemove(ctx, v.Name, true); !cerrdefs.IsNotFound(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// networksOfSandboxes returns the IDs of the engine's networks for sandboxes.
func networksOfSandboxes(ctx context.Context, eng *client.Client) ([]string, error) {
	found, err := eng.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "dev.agentenv.network"))})
	var ids []string
	for _, n := range found {
		ids = append(ids, n.ID)
	}
	return ids, err
}

// leftNetworks removes the engine's one network for sandboxes, unless it was there before or a
// container uses it. An ended container uses it, too, but the engine would remove the network.
func leftNetworks(ctx context.Context, eng *client.Client, before []string) error {
	left, err := networksOfSandboxes(ctx, eng)
	left = slices.DeleteFunc(left, func(id string) bool { return slices.Contains(before, id) })
	if len(left) > 1 {
		err = errors.Join(err, fmt.Errorf("%d networks of sandboxes were made", len(left)))
	}
	for _, id := range left {
		using, lerr := eng.ContainerList(ctx, container.ListOptions{All: true, Limit: 1, Filters: filters.NewArgs(filters.Arg("network", id))})
		if err = errors.Join(err, lerr); lerr != nil || len(using) > 0 {
			continue
		}
		rerr := eng.NetworkRemove(ctx, id)
		if rerr != nil && !cerrdefs.IsNotFound(rerr) && !cerrdefs.IsPermissionDenied(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// leftImages removes the images of this run, and returns an error if there are any.
func leftImages(ctx context.Context, eng *client.Client) error {
	left, err := eng.ImageList(ctx, image.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", runLabel+"="+os.Getenv(runVariable))),
	})
	if err != nil {
		return err
	}
	for _, i := range left {
		err = errors.Join(err, fmt.Errorf("image %s %s was left", i.ID, i.RepoTags))
		if _, rerr := eng.ImageRemove(ctx, i.ID, image.RemoveOptions{Force: true, PruneChildren: true}); !cerrdefs.IsNotFound(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
