package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestContractOfCopies runs the contract where files can be copied: on a writable root.
func TestContractOfCopies(t *testing.T) {
	cfg := config(t, testdocker.Scratch(t))
	cfg.User = "4242:4242"
	cfg.Env = map[string]string{"MINE": "yes"}
	eng := testdocker.Engine(t)
	t.Cleanup(func() { noImagesLeft(t) })
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"copies"},
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return docker.New(ctx, cfg)
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return docker.Attach(ctx, docker.Config{}, id)
		},
		Destroy: func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return eng.ContainerRemove(ctx, p.ID(), container.RemoveOptions{Force: true, RemoveVolumes: true})
		},
		Restore: func(ctx context.Context, _, snapshot string) (primitives.EnvironmentPrimitive, error) {
			again := cfg
			again.Image = snapshot
			return docker.New(ctx, again)
		},
		Forget: func(ctx context.Context, snapshot string) error {
			return (docker.Config{}).RemoveSnapshot(ctx, snapshot)
		},
	})
}

// imagesOfThisRun lists the images that carry the label of the test's containers.
func imagesOfThisRun(t *testing.T) []image.Summary {
	t.Helper()
	var args []filters.KeyValuePair
	for k, v := range testdocker.Labels() {
		args = append(args, filters.Arg("label", k+"="+v))
	}
	found, err := testdocker.Engine(t).ImageList(context.WithoutCancel(t.Context()), image.ListOptions{All: true, Filters: filters.NewArgs(args...)})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func noImagesLeft(t *testing.T) {
	t.Helper()
	for _, i := range imagesOfThisRun(t) {
		t.Errorf("image %s %v is left: %v", i.ID, i.RepoTags, i.Labels)
	}
}

// end terminates and closes a sandbox.
func end(t *testing.T, p primitives.EnvironmentPrimitive) {
	t.Helper()
	_, err := p.Terminate(context.WithoutCancel(t.Context()))
	if err := errors.Join(err, p.Close()); err != nil {
		t.Error(err)
	}
}

func TestForksOfForksLeaveNoImages(t *testing.T) {
	s := open(t, config(t, testdocker.Busybox(t)))
	output(t, s, "sh", "-c", "echo root >/outside")
	first, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	f := first[0].(*guest.Sandbox)
	if f.Paths() != s.Paths() {
		t.Errorf("paths %+v became %+v", s.Paths(), f.Paths())
	}
	if got := output(t, f, "cat", "/outside"); got != "root\n" {
		t.Errorf("a file outside of the sandbox's folders: %q", got)
	}
	attached, err := docker.Attach(t.Context(), docker.Config{}, f.ID())
	if err != nil {
		t.Fatal(err)
	}
	second, err := attached.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(imagesOfThisRun(t)); n != 2 {
		t.Errorf("%d images while forks and forks of forks live, want 2", n)
	}
	end(t, first[1])
	end(t, attached)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if n := len(imagesOfThisRun(t)); n != 2 {
		t.Errorf("%d images while the fork of a fork lives, want 2", n)
	}
	if got := output(t, second[0].(*guest.Sandbox), "cat", "/outside"); got != "root\n" {
		t.Errorf("in the fork of the fork: %q", got)
	}
	end(t, second[0])
	noImagesLeft(t)
}

func TestForkMakesAllOrNone(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	p := testdocker.NewProxy(t)
	cfg.Host = p.Host()
	s := open(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Before(func(_, path string) {
		if strings.HasSuffix(path, "/start") { // a copy is made, but Fork is not done
			cancel()
		}
	})
	if _, err := s.Fork(ctx, 3); !errors.Is(err, context.Canceled) {
		t.Fatalf("Fork: %v", err)
	}
	// The copies inherit the label.
	list, err := testdocker.Engine(t).ContainerList(t.Context(), container.ListOptions{All: true, Filters: ofThisRun()})
	if err != nil || len(list) != 1 {
		t.Errorf("containers after a cancelled Fork: %d, %v", len(list), err)
	}
	noImagesLeft(t)
}

func ofThisRun() filters.Args {
	args := filters.NewArgs()
	for k, v := range testdocker.Labels() {
		args.Add("label", k+"="+v)
	}
	return args
}

func TestWhatAnImageDoesNotHoldCannotBeCopied(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Workspace = t.TempDir()
	s := open(t, cfg)
	if c := s.Capabilities(); c.Fork || c.Snapshot || !c.Pause || !c.Usage {
		t.Errorf("capabilities %+v", c)
	}
	again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, s := range []*guest.Sandbox{s, again} {
		if _, err := s.Fork(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "workspace") {
			t.Errorf("Fork: %v", err)
		}
		if _, err := s.Snapshot(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Snapshot: %v", err)
		}
	}
}

func TestASnapshotIsListedUntilItIsRemoved(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	cfg.Session = "the conversation"
	s := open(t, cfg)
	if err := s.WriteFile(t.Context(), "f", strings.NewReader("kept"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	id, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listed := func() (docker.SnapshotInfo, bool) {
		list, err := (docker.Config{}).Snapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(s docker.SnapshotInfo) bool { return s.ID == id })
		if i < 0 {
			return docker.SnapshotInfo{}, false
		}
		return list[i], true
	}
	if info, ok := listed(); !ok || info.Session != cfg.Session || info.Size <= 0 || info.Created.IsZero() {
		t.Errorf("listed as %+v, %v", info, ok)
	}
	// Use other settings than those of the original sandbox.
	cfg.Image, cfg.Session, cfg.ReadOnly = id, "", true
	again, err := docker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, again, "cat", "f"); got != "kept" {
		t.Errorf("the file holds %q", got)
	}
	if err := (docker.Config{}).RemoveSnapshot(t.Context(), id); !errors.Is(err, fs.ErrExist) {
		t.Errorf("removing a snapshot whose sandbox lives: %v", err)
	}
	end(t, again)
	if err := (docker.Config{}).RemoveSnapshot(t.Context(), id); err != nil {
		t.Error(err)
	}
	if _, ok := listed(); ok {
		t.Error("it is still listed")
	}
	for _, id := range []string{id, testdocker.Busybox(t)} {
		if err := (docker.Config{}).RemoveSnapshot(t.Context(), id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removing %s: %v", id, err)
		}
	}
	noImagesLeft(t)
}

func TestASandboxPausedByAnotherProgram(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	eng := testdocker.Engine(t)
	if err := eng.ContainerPause(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	awaitState(t, eng, s.ID(), container.StatePaused)
	if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusPaused {
		t.Errorf("Poll: %+v, %v", state, err)
	}
	list, err := (docker.Config{}).List(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(i primitives.Info) bool { return i.ID == s.ID() && i.Status == primitives.StatusPaused }) {
		t.Errorf("List: %+v, %v", list, err)
	}
	if u, err := s.ReadUsage(t.Context()); err != nil || u.Memory <= 0 || u.MemoryLimit != 4<<30 {
		t.Errorf("usage of a paused sandbox: %+v, %v", u, err)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || !status.Success() {
		t.Errorf("what ran: %+v, %v", status, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	// Terminate must not wait for a guest that is frozen.
	if err := insist(t, eng.ContainerPause, s.ID()); err != nil {
		t.Fatal(err)
	}
}

// awaitState waits until the engine lists a container in a state: the engine may answer that it has
// paused a container before it knows of the pause, and report an end before its list shows it.
func awaitState(t *testing.T, eng *client.Client, name string, state container.ContainerState) {
	t.Helper()
	await(t, func() bool {
		list, err := eng.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("status", state))})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(c container.Summary) bool { return slices.Contains(c.Names, "/"+name) })
	})
}

// insist pauses or resumes a container with the engine. It retries while the engine refuses,
// because the engine learns late of the previous change.
func insist(t *testing.T, do func(ctx context.Context, container string) error, id string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do(ctx, id)
		if !cerrdefs.IsConflict(err) && !cerrdefs.IsInternal(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// The engine may still learn of a pause when it has been over for a while. Here another handle
// makes it report one.
func TestPollIsNotMisledRightAfterResume(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	eng := testdocker.Engine(t)
	for range 5 {
		if err := errors.Join(s.Pause(t.Context()), s.Resume(t.Context())); err != nil {
			t.Fatal(err)
		}
		docker.StayJustFrozen(s)
		if err := insist(t, eng.ContainerPause, s.ID()); err != nil {
			t.Fatal(err)
		}
		polling := make(chan struct{})
		resumed := make(chan error, 1)
		go func() {
			<-polling
			resumed <- insist(t, eng.ContainerUnpause, s.ID())
		}()
		close(polling)
		if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusRunning {
			t.Errorf("Poll: %+v, %v", state, err)
		}
		if err := <-resumed; err != nil {
			t.Fatal(err)
		}
	}
}

func TestASnapshotDoesNotSayWhatIsNotTrueOfIt(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Keep, cfg.Expires = true, time.Second
	s := open(t, cfg)
	id, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (docker.Config{}).RemoveSnapshot(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	// A container that the engine's own commands make of the snapshot is not a sandbox.
	eng := testdocker.Engine(t)
	made, err := eng.ContainerCreate(t.Context(), &container.Config{Image: id}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, container.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	list, err := (docker.Config{}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Image == id {
			t.Errorf("listed as a sandbox: %+v", i)
		}
	}
	garbage, err := (docker.Config{}).GC(t.Context(), primitives.GCOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range garbage {
		if strings.Contains(g.ID, id) {
			t.Errorf("garbage: %+v", g)
		}
	}
}

func TestAForkWithoutItsUserSaysSo(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	cfg.User = "root"
	s := open(t, cfg)
	output(t, s, "sh", "-c", ": >/etc/passwd")
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, primitives.ErrUnknownUser) || !strings.Contains(err.Error(), `"root"`) {
		t.Errorf("got %v", err)
	}
	noImagesLeft(t)
}
