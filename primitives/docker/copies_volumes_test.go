package docker_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// committed commits a new container of the image from and returns the ID of the resulting image,
// which is removed with the test.
func committed(t *testing.T, from string, changes ...string) string {
	t.Helper()
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: from, Cmd: []string{"true"}, Labels: testdocker.Labels()}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, container.RemoveOptions{RemoveVolumes: true}); err != nil {
			t.Error(err)
		}
	}()
	return committedFrom(t, made.ID, changes...)
}

// committedFrom commits a container to an image that is removed with the test.
func committedFrom(t *testing.T, id string, changes ...string) string {
	t.Helper()
	eng := testdocker.Engine(t)
	img, err := eng.ContainerCommit(t.Context(), id, container.CommitOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := eng.ImageRemove(context.WithoutCancel(t.Context()), img.ID, image.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	return img.ID
}

func TestFilesInAVolumeOfTheImageAreNotLostInACopy(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, committed(t, testdocker.Busybox(t), "VOLUME /data/")))
	output(t, s, "sh", "-c", "echo precious >/data/x")
	again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, s := range map[string]*guest.Sandbox{"made": s, "attached": again} {
		if c := s.Capabilities(); c.Fork || c.Snapshot || !c.Pause {
			t.Errorf("%s: capabilities %+v", name, c)
		}
		copies, err := s.Fork(t.Context(), 1)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "volume /data;") {
			t.Errorf("%s: Fork: %v", name, err)
		}
		for _, c := range copies {
			end(t, c)
		}
		id, err := s.Snapshot(t.Context())
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "/data") {
			t.Errorf("%s: Snapshot: %v", name, err)
		}
		if id != "" {
			if err := (docker.Config{}).RemoveSnapshot(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
}

// A mounted folder replaces the image's volume, and is shared.
func TestAVolumeOfTheImageThatIsMountedOverIsNoneAndShared(t *testing.T) {
	t.Parallel()
	cfg := config(t, committed(t, testdocker.Busybox(t), "VOLUME /data"))
	cfg.Mounts = []docker.Mount{{Source: t.TempDir(), Target: "/data/"}}
	s := open(t, cfg)
	output(t, s, "sh", "-c", "echo shared >/data/x")
	copies, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, copies[0])
	f := copies[0].(*guest.Sandbox)
	if got := output(t, f, "cat", "/data/x"); got != "shared\n" || !f.Capabilities().Fork {
		t.Errorf("the copy reads %q and can do %+v", got, f.Capabilities())
	}
}
