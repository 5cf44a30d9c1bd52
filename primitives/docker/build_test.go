package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// testBuild returns a build whose image the test must remove.
func testBuild(t *testing.T, commands ...string) primitives.Install {
	return primitives.Install{
		Name: "agentenv-test-built", Labels: testdocker.Labels(),
		Commands: append([]string{"echo " + t.Name() + " >/built"}, commands...),
	}
}

// build builds an image that is removed with the test.
func build(t *testing.T, cfg docker.Config, b primitives.Install) primitives.Image {
	t.Helper()
	img, err := docker.BuildImage(t.Context(), cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cfg.RemoveImage(context.WithoutCancel(t.Context()), img.Ref); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	return img
}

// onEngine returns what this run of the tests has made on an engine.
func onEngine(t *testing.T, eng *client.Client) (images []image.Summary, containers []container.Summary, volumes []*volume.Volume) {
	t.Helper()
	args := filters.NewArgs()
	for key, value := range testdocker.Labels() {
		args.Add("label", key+"="+value)
	}
	images, err := eng.ImageList(t.Context(), image.ListOptions{All: true, Filters: args})
	if err == nil {
		containers, err = eng.ContainerList(t.Context(), container.ListOptions{All: true, Filters: args})
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := eng.VolumeList(t.Context(), volume.ListOptions{Filters: args})
	if err != nil {
		t.Fatal(err)
	}
	return images, containers, found.Volumes
}

func noneBuilt(t *testing.T) {
	t.Helper()
	eng := testdocker.Engine(t)
	if images, containers, _ := onEngine(t, eng); len(images)+len(containers) > 0 {
		t.Errorf("left behind: %+v %+v", images, containers)
	}
	await(t, func() bool { // the engine forgets a container before it removes its volumes
		_, _, volumes := onEngine(t, eng)
		return len(volumes) == 0
	})
}

func TestAnImageIsBuiltByRootAndKeepsTheUserOfItsBase(t *testing.T) {
	t.Parallel()
	cfg := config(t, committed(t, testdocker.Busybox(t), "USER tester", "WORKDIR /tmp", `CMD ["own"]`, "HEALTHCHECK CMD own"))
	b := testBuild(t)
	b.Labels["note"] = `quoted "$HOME" \` + "\nRUN true"
	base := build(t, cfg, b)
	if base.Labels["note"] != b.Labels["note"] || base.Base != cfg.Image {
		t.Errorf("built %+v", base)
	}
	cfg.Image = base.Ref
	b = testBuild(t, "id -u >/who && pwd >>/who", "echo $http_proxy >>/who")
	b.BuildEnv = []string{"http_proxy=http://proxy.invalid"}
	img := build(t, cfg, b)
	found, err := testdocker.Engine(t).ImageInspect(t.Context(), img.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if c := found.Config; c.User != "tester" || c.WorkingDir != "/tmp" || !slices.Equal(c.Cmd, []string{"own"}) || len(c.Entrypoint) != 0 ||
		c.Healthcheck == nil || !slices.Equal(c.Healthcheck.Test, []string{"CMD-SHELL", "own"}) || !slices.Equal(c.Env, []string{"IMAGE_MARK=from-image"}) || len(c.Volumes) > 0 {
		t.Errorf("the image is configured as %+v", c)
	}
	cfg.Image = img.Ref
	s := open(t, cfg)
	if got := output(t, s, "sh", "-c", "cat /who; id -u; echo ${http_proxy:-none}"); got != "0\n/\nhttp://proxy.invalid\n1000\nnone\n" {
		t.Errorf("the container says %q", got)
	}
	list, err := cfg.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	find := func(ref string) primitives.Image {
		i := slices.IndexFunc(list, func(i primitives.Image) bool { return i.Ref == ref })
		if i < 0 {
			t.Fatalf("the list lacks %s: %+v", ref, list)
		}
		return list[i]
	}
	if got := find(img.Ref); !got.InUse || got.ID != img.ID || got.Base != base.Ref || got.Size == 0 || got.Created.IsZero() {
		t.Errorf("listed as %+v", got)
	}
	if find(base.Ref).InUse {
		t.Error("no container is of the base")
	}
	if err := cfg.RemoveImage(t.Context(), img.Ref); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an image in use: %v", err)
	}
}

func TestAnImageThatIsBuiltOnASnapshotIsNone(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	s := open(t, cfg)
	output(t, s, "sh", "-c", "echo here >file")
	snapshot, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cfg.RemoveSnapshot(context.WithoutCancel(t.Context()), snapshot); err != nil {
			t.Error(err)
		}
	})
	cfg.Image = snapshot
	img := build(t, cfg, testBuild(t))
	cfg.Image = img.Ref
	if got := output(t, open(t, cfg), "cat", "file"); got != "here\n" {
		t.Errorf("a container of it has %q", got)
	}
	list, err := cfg.Snapshots(t.Context())
	if err != nil || slices.ContainsFunc(list, func(i docker.SnapshotInfo) bool { return i.ID == img.Ref }) {
		t.Errorf("the snapshots are %+v, %v", list, err)
	}
	images, err := cfg.Images(t.Context())
	if err != nil || !slices.ContainsFunc(images, func(i primitives.Image) bool { return i.Ref == img.Ref }) ||
		slices.ContainsFunc(images, func(i primitives.Image) bool { return i.Ref == snapshot }) {
		t.Errorf("the images are %+v, %v", images, err)
	}
}

// The base stays even if it has no name, when the image is removed with everything that its build
// has made.
func TestTheBaseOfAnImageStays(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: cfg.Image, Cmd: []string{"true"}, Labels: testdocker.Labels()}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	base, err := eng.ContainerCommit(t.Context(), made.ID, container.CommitOptions{})
	if err := errors.Join(err, eng.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{})); err != nil {
		t.Fatal(err)
	}
	defer noneBuilt(t)
	defer func() {
		if _, err := eng.ImageRemove(t.Context(), base.ID, image.RemoveOptions{}); err != nil {
			t.Errorf("the base: %v", err)
		}
	}()
	cfg.Image = base.ID
	img := build(t, cfg, testBuild(t, "true"))
	if err := cfg.RemoveImage(t.Context(), img.Ref); err != nil {
		t.Error(err)
	}
}

func TestAnImageIsBuiltOnceByAllWhoWantIt(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	var builds atomic.Int32
	cfg.Progress = func(line string) {
		if strings.HasPrefix(line, "building ") {
			builds.Add(1)
		}
	}
	b := testBuild(t)
	if _, err := docker.FindImage(t.Context(), cfg, b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the build: %v", err)
	}
	var all sync.WaitGroup
	images := make([]primitives.Image, 4)
	for i := range images {
		all.Go(func() { images[i] = build(t, cfg, b) })
	}
	all.Wait()
	found, err := docker.FindImage(t.Context(), cfg, b)
	if err != nil || slices.ContainsFunc(images, func(i primitives.Image) bool { return i.ID != found.ID || i.Ref != found.Ref }) {
		t.Errorf("found %+v, %v; built %+v", found, err, images)
	}
	if n := builds.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
	if err := cfg.RemoveImage(t.Context(), found.Ref); err != nil {
		t.Error(err)
	}
	noneBuilt(t)
}

func TestABuildThatFailsSaysWhereAndLeavesNothing(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	_, err := docker.BuildImage(t.Context(), cfg, testBuild(t, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; exit 7"))
	failed := &docker.BuildError{}
	if !errors.As(err, &failed) || failed.Status.Code != 7 || !strings.HasSuffix(failed.Output, "\n2999\n3000") || !strings.HasPrefix(failed.Command, "i=0") {
		t.Errorf("got %v, %+v, output %.40q", err, failed.Status, failed.Output)
	}
	cfg.Image = testdocker.Scratch(t)
	_, err = docker.BuildImage(t.Context(), cfg, testBuild(t))
	if !errors.As(err, &failed) || !errors.Is(err, primitives.ErrCommandNotFound) || !strings.Contains(err.Error(), "/bin/sh") {
		t.Errorf("without a shell: %v", err)
	}
	noneBuilt(t)
}

// The engine removes an image's parents with it if they have no name.
func TestABuildThatFailsLeavesABaseWithoutAName(t *testing.T) {
	cfg := config(t, committed(t, testdocker.Busybox(t)))
	failed := &docker.BuildError{}
	if _, err := docker.BuildImage(t.Context(), cfg, testBuild(t, "true", "exit 7")); !errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
	if left := imagesOfThisRun(t); len(left) != 1 || left[0].ID != cfg.Image {
		t.Errorf("the base is %s, and there are %+v", cfg.Image, left)
	}
}

func TestABuildThatIsCancelledEndsAndLeavesNothing(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg.Progress = func(line string) {
		if line == "it runs" {
			cancel(why)
		}
	}
	if _, err := docker.BuildImage(ctx, cfg, testBuild(t, "echo it runs; sleep 1000")); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	noneBuilt(t)
}

func TestBuildImageRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	for name, c := range map[string]struct {
		build primitives.Install
		want  error
	}{
		"no name":           {primitives.Install{}, fs.ErrInvalid},
		"a name with a tag": {primitives.Install{Name: "a:b"}, fs.ErrInvalid},
		"a NUL byte":        {primitives.Install{Name: "a", Commands: []string{"a\x00b"}}, fs.ErrInvalid},
	} {
		if img, err := docker.BuildImage(t.Context(), cfg, c.build); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", name, img, err)
		}
	}
	if err := cfg.RemoveImage(t.Context(), cfg.Image); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image that was not built was removed: %v", err)
	}
	cfg.Image = "agentenv-test-missing:none"
	if _, err := docker.BuildImage(t.Context(), cfg, primitives.Install{Name: "a"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a base that is missing: %v", err)
	}
}

// await waits until so returns true.
func await(t *testing.T, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not come to that within a minute")
		}
	}
}
