package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// newSwept makes a sandbox and waits for the sweep that this starts: it makes requests, such as
// removals, like those at which the program is killed.
func newSwept(ctx context.Context, cfg docker.Config) (*guest.Sandbox, error) {
	s, err := docker.New(ctx, cfg)
	if err == nil {
		docker.AwaitSweep(s)
	}
	return s, err
}

func makeCopies(ctx context.Context, config string, reached func(string, ...any)) error {
	var cfg docker.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	s, err := newSwept(ctx, cfg)
	if err != nil {
		return err
	}
	if err := s.WriteFile(ctx, "file", strings.NewReader("whole"), primitives.WriteOptions{}); err != nil {
		return err
	}
	reached("made")
	if _, err := s.Snapshot(ctx); err != nil {
		return err
	}
	reached("kept")
	copies, err := s.Fork(ctx, 2)
	if err != nil {
		return err
	}
	reached("forked")
	for _, c := range append(copies, s) {
		_, terr := c.Terminate(ctx)
		err = errors.Join(err, terr, c.Close())
	}
	return err
}

// leftForks returns an error that describes the copies of the program's sandbox, or nil.
func (v *victim) leftForks(ctx context.Context) error {
	eng := testdocker.Engine(v.t)
	forks := filters.NewArgs(filters.Arg("label", "dev.agentenv.fork="+v.name))
	containers, err := eng.ContainerList(ctx, container.ListOptions{All: true, Filters: forks})
	if err != nil || len(containers) > 0 {
		return fmt.Errorf("forks %v, %w", containers, err)
	}
	images, err := eng.ImageList(ctx, image.ListOptions{All: true, Filters: forks})
	if err != nil || len(images) > 0 {
		return fmt.Errorf("images of forks %v, %w", images, err)
	}
	return nil
}

// commits returns the engine's commit events from now on. The engine remembers its last 256 events
// only, which on a busy machine cover a few seconds.
func commits(t *testing.T) <-chan events.Message {
	t.Helper()
	messages, failed := testdocker.Engine(t).Events(t.Context(), events.ListOptions{
		Since:   strconv.FormatInt(time.Now().Unix(), 10), // it may answer before it listens
		Filters: filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("event", string(events.ActionCommit))),
	})
	heard := make(chan events.Message, 1000) // large enough: the engine drops slow clients
	go func() {
		defer close(heard)
		for {
			select {
			case m := <-messages:
				select {
				case heard <- m:
				case <-t.Context().Done():
					return
				}
			case <-failed:
				return
			}
		}
	}()
	return heard
}

// committed waits until the engine has made n images of the program's sandbox: it continues when
// the program is dead.
func (v *victim) committed(heard <-chan events.Message, n int) {
	v.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for n > 0 {
		select {
		case m, ok := <-heard:
			if !ok {
				v.t.Fatal("the engine does not tell what it makes")
			}
			if m.Actor.Attributes["name"] == v.name {
				n--
			}
		case <-timer.C:
			v.t.Fatalf("%d images are still to be made by the engine", n)
		}
	}
}

// TestAProgramThatIsKilledWhileItMakesCopies checks that only complete snapshots remain.
func TestAProgramThatIsKilledWhileItMakesCopies(t *testing.T) {
	t.Run("at", func(t *testing.T) {
		var all sync.WaitGroup // as in TestAProgramThatIsKilledLeavesNothing
		defer all.Wait()
		for name, at := range map[string]struct {
			after, request string
			commits        int // that the engine receives
			snapshots      int
		}{
			"before snapshot": {"made", "", 0, 0},
			"snapshot":        {"made", "POST /commit", 1, 1},
			"fork":            {"kept", "POST /commit", 2, 1},
			"fork, committed": {"kept", "GET /images/[^/]+/json", 2, 1},
			"fork, create":    {"kept", "POST /containers/create", 2, 1},
			"fork, attach":    {"kept", "POST /containers/[^/]+/attach", 2, 1},
			"fork, start":     {"kept", "POST /containers/[^/]+/start", 2, 1},
			"forked":          {"forked", "", 2, 1},
		} {
			all.Go(func() {
				t.Run(name, func(t *testing.T) {
					cfg := config(t, testdocker.Busybox(t))
					cfg.Grace = 1 * time.Second
					if strings.HasSuffix(at.request, "/commit") {
						// During the commit the container is paused, and so would be garbage.
						cfg.Keep = true
					}
					cfg.Session = t.Name() + strconv.FormatInt(time.Now().UnixNano(), 10)
					heard := commits(t)
					v := killedAt(t, cfg, at.after, at.request, insteadVariable+"=copies")
					v.committed(heard, at.commits)
					if cfg.Keep { // not until it has expired: the engine may still be busy
						if err := (docker.Config{}).Remove(t.Context(), v.name); err != nil {
							t.Error(err)
						}
					}
					v.leavesNothing()
					if kept := wholeSnapshots(t, cfg); kept != at.snapshots {
						t.Errorf("%d snapshots are left, want %d", kept, at.snapshots)
					}
				})
			})
		}
	})
	noImagesLeft(t)
}

// wholeSnapshots returns how many snapshots a session has, and removes them. It makes a sandbox of
// each to check it.
func wholeSnapshots(t *testing.T, cfg docker.Config) int {
	t.Helper()
	list, err := (docker.Config{}).Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(i docker.SnapshotInfo) bool { return i.Session != cfg.Session })
	for _, i := range list {
		cfg.Image, cfg.Session, cfg.Keep = i.ID, "", false
		s, err := docker.New(t.Context(), cfg)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := output(t, s, "cat", "file"); got != "whole" {
			t.Errorf("the file in the snapshot holds %q", got)
		}
		end(t, s)
		if err := (docker.Config{}).RemoveSnapshot(t.Context(), i.ID); err != nil {
			t.Error(err)
		}
	}
	return len(list)
}

// buildForEver runs a build that lasts until the program is killed.
func buildForEver(ctx context.Context, config string, reached func(string, ...any)) error {
	var cfg docker.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return err
	}
	cfg.Progress = func(line string) {
		if line == "it runs" {
			reached("building")
		}
	}
	_, err := docker.BuildImage(ctx, cfg, primitives.Install{
		Name: cfg.Name, Commands: []string{"true", "echo it runs; sleep 1000"}, Labels: testdocker.Labels(),
	})
	return err
}

func TestAProgramThatIsKilledWhileItBuildsLeavesNothing(t *testing.T) {
	t.Parallel()
	cfg, eng := ownNetworks(t)
	v := newVictim(t, cfg, insteadVariable+"=build")
	if _, ok := v.until("building"); !ok {
		t.Fatal(v.log.String())
	}
	gone := func() bool {
		t.Helper()
		if _, err := cfg.GC(t.Context(), primitives.GCOptions{NoGrace: true}); err != nil {
			t.Fatal(err)
		}
		images, containers, volumes := onEngine(t, eng)
		return len(images)+len(containers)+len(volumes) == 0
	}
	if gone() {
		t.Error("what a live program builds was collected")
	}
	v.kill()
	v.end()
	await(t, gone)
}
