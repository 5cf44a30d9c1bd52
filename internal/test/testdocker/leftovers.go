package testdocker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

// runLabel is the label of all containers of tests. Its value is in the variable runVariable,
// so that programs started by a test use the same.
const (
	runLabel    = "agentenv-test-run"
	runVariable = "AGENTENV_TEST_RUN"
)

// Labels returns the labels of this run of the tests.
func Labels() map[string]string { return map[string]string{runLabel: os.Getenv(runVariable)} }

// Main runs the tests of a package and returns the exit status. It fails if they leave a
// container, a volume or an image behind.
func Main(m *testing.M) int {
	if os.Getenv(runVariable) != "" {
		return m.Run() // a program that a test started
	}
	if err := os.Setenv(runVariable, fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := leftovers(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		return 1
	}
	return code
}

// leftovers waits until no containers and volumes of this run exist. After a minute it removes
// them and returns an error. The engine forgets a container before it removes its volumes.
func leftovers() error {
	eng, err := connect()
	if err != nil {
		return err
	}
	defer func() { _ = eng.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) //nolint:forbidigo // TestMain has no context
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
			return errors.Join(leftNetworks(ctx, eng), leftImages(ctx, eng))
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

// leftNetworks removes the engine's one network for sandboxes, unless other tests use it.
func leftNetworks(ctx context.Context, eng *client.Client) error {
	left, err := eng.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "dev.agentenv.network"))})
	if err == nil && len(left) > 1 {
		err = fmt.Errorf("%d networks of sandboxes were made", len(left))
	}
	for _, n := range left {
		rerr := eng.NetworkRemove(ctx, n.ID)
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
