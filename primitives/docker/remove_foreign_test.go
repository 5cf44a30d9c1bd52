package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// A container of an image that 'docker commit' made of a sandbox has the labels of the sandbox, but
// is not a sandbox.
func TestRemoveAndAttachRefuseAContainerOfACommittedImage(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	eng := testdocker.Engine(t)
	img, err := eng.ContainerCommit(t.Context(), s.ID(), container.CommitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine := s.ID() + "-mine"
	made, err := eng.ContainerCreate(t.Context(), &container.Config{
		Image: img.ID, Entrypoint: []string{"sleep"}, Cmd: []string{"1000"},
	}, nil, nil, nil, mine)
	if err == nil {
		err = eng.ContainerStart(t.Context(), made.ID, container.StartOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := eng.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true})
		if _, ierr := eng.ImageRemove(ctx, img.ID, image.RemoveOptions{}); errors.Join(err, ierr) != nil {
			t.Error(err, ierr)
		}
	})
	for _, id := range []string{mine, made.ID, made.ID[:12]} {
		if _, err := docker.Attach(t.Context(), docker.Config{}, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Attach to %s: %v", id, err)
		}
		if err := (docker.Config{}).Remove(t.Context(), id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Remove of %s: %v", id, err)
		}
	}
	if found, err := eng.ContainerInspect(t.Context(), made.ID); err != nil || !found.State.Running {
		t.Errorf("the container is not left alone: %v", err)
	}
}
