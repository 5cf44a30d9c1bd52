package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// owners returns the labels of owners that live, have died, or run elsewhere.
func owners(t *testing.T, eng *client.Client, alive string) map[string]map[string]string {
	t.Helper()
	found, err := eng.ContainerInspect(t.Context(), alive)
	if err != nil {
		t.Fatal(err)
	}
	with := func(key, value string) map[string]string {
		labels := maps.Clone(found.Config.Labels)
		labels["dev.agentenv."+key] = value
		return labels
	}
	return map[string]map[string]string{
		"alive":         found.Config.Labels,
		"dead":          with("owner.started", "1"),
		"other machine": with("owner.boot", "other"),
		"other pids":    with("owner.pidns", "pid:[1]"),
	}
}

// TestWhatGCTakes makes everything that may be left on an engine. The engine is the test's own, so
// no other program collects it.
func TestWhatGCTakes(t *testing.T) {
	t.Parallel()
	daemon := testdocker.NewDaemon(t, nil)
	busybox := testdocker.Busybox(t)
	daemon.Load(t, busybox)
	eng := daemon.Engine(t)
	cfg := config(t, busybox)
	cfg.Host = daemon.Host()
	alive := open(t, cfg)
	docker.AwaitSweep(alive) // or it removes what is made here
	owner := owners(t, eng, alive.ID())
	listed := map[string]primitives.Status{}
	var taken, takenWithoutGrace []string
	later, past := time.Now().Add(time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339)
	for _, c := range []struct {
		name, owner, state string
		kept, expires      string
		otherName, inUse   bool
		status             primitives.Status // in the list; empty means not listed
		taken              bool              // by GC
		noGrace            bool              // by GC without grace
	}{
		{name: "making", owner: "alive", state: "created"},
		{name: "half-made", owner: "dead", state: "created", status: primitives.StatusLost, taken: true},
		{name: "making-elsewhere", owner: "other machine", state: "created", status: primitives.StatusLost},
		{name: "making-contained", owner: "other pids", state: "created", status: primitives.StatusLost},
		{name: "of-a-snapshot", owner: "dead", state: "created", otherName: true},
		{name: "half-made-keep", owner: "dead", state: "created", kept: "true", status: primitives.StatusLost, taken: true},
		{name: "ended", owner: "dead", state: "exited", status: primitives.StatusExited, taken: true},
		{name: "ended-kept", owner: "alive", state: "exited", kept: "true", status: primitives.StatusExited, taken: true},
		{name: "unknown-kept", owner: "dead", state: "unmet", kept: "true", status: primitives.StatusExited, taken: true},
		{name: "failed-kept", owner: "dead", state: "failed", kept: "true", status: primitives.StatusExited},
		{name: "died-kept", owner: "dead", state: "died", kept: "true", expires: later, status: primitives.StatusExited},
		{name: "died-expired", owner: "alive", state: "died", kept: "true", expires: past, status: primitives.StatusExited, taken: true},
		{name: "died", owner: "dead", state: "died", status: primitives.StatusExited, taken: true},
		{name: "in-grace", owner: "dead", state: "running", status: primitives.StatusRunning, noGrace: true},
		{name: "attached", owner: "dead", state: "running", inUse: true, status: primitives.StatusRunning},
		{name: "kept", owner: "dead", state: "running", kept: "true", expires: later, status: primitives.StatusRunning},
		{name: "frozen", owner: "dead", state: "paused", status: primitives.StatusPaused, taken: true},
		{name: "frozen-kept", owner: "dead", state: "paused", kept: "true", status: primitives.StatusPaused},
		{name: "frozen-expired", owner: "dead", state: "paused", kept: "true", expires: past, status: primitives.StatusPaused, taken: true},
		{name: "frozen-owned", owner: "alive", state: "paused", kept: "true", expires: past, status: primitives.StatusPaused},
	} {
		labels := maps.Clone(owner[c.owner])
		labels["dev.agentenv.sandbox"], labels["dev.agentenv.expires"] = c.name, c.expires
		if c.kept != "" {
			labels["dev.agentenv.keep"] = c.kept
		}
		name := c.name
		if c.otherName {
			name += "-of-somebody"
		}
		fabricate(t, eng, name, c.state, &container.Config{Image: busybox, Labels: labels}, c.inUse)
		if c.status != "" {
			listed[c.name] = c.status
		}
		if c.taken {
			taken = append(taken, "container "+c.name)
		}
		if c.noGrace {
			takenWithoutGrace = append(takenWithoutGrace, "container "+c.name)
		}
	}
	taken = append(taken, "volume "+fabricateVolumes(t, eng, owner))
	taken = append(taken, fabricateImages(t, eng, owner)...)

	list, err := cfg.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if want := listed[i.ID]; i.Status != want && want != "" || want == "" && !i.Owned {
			t.Errorf("%s is listed as %s, not %q", i.ID, i.Status, want)
		}
		delete(listed, i.ID)
	}
	if len(listed) > 0 {
		t.Errorf("not listed: %v", listed)
	}
	slices.Sort(taken)
	for _, c := range []struct {
		opts primitives.GCOptions
		want []string
	}{
		{primitives.GCOptions{DryRun: true}, taken},
		{primitives.GCOptions{}, taken},
		{primitives.GCOptions{}, nil},
		{primitives.GCOptions{NoGrace: true, DryRun: true}, takenWithoutGrace},
		{primitives.GCOptions{NoGrace: true}, takenWithoutGrace},
	} {
		found, err := cfg.GC(t.Context(), c.opts)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.Kind+" "+f.ID)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("GC with %+v took\n%q, not\n%q", c.opts, got, c.want)
		}
	}
	if list, err = cfg.List(t.Context()); err != nil || len(list) != 9 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// fabricate makes a container in a state.
func fabricate(t *testing.T, eng *client.Client, name, state string, c *container.Config, inUse bool) {
	t.Helper()
	c.Cmd = []string{"sleep", "1000"}
	switch state {
	case "exited":
		c.Cmd = []string{"true"}
	case "died":
		c.Cmd = []string{"sh", "-c", "exit 137"}
	case "failed":
		c.Cmd = []string{"sh", "-c", "exit 1"}
	case "unmet":
		c.Cmd = []string{"sh", "-c", "exit " + strconv.Itoa(guest.ExitUnmet)}
	}
	made, err := eng.ContainerCreate(t.Context(), c, &container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := eng.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
	if state == "created" {
		return
	}
	if err := eng.ContainerStart(t.Context(), made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	if inUse {
		made, err := eng.ContainerExecCreate(t.Context(), made.ID, container.ExecOptions{Cmd: []string{"sleep", "1000"}})
		if err == nil {
			err = eng.ContainerExecStart(t.Context(), made.ID, container.ExecStartOptions{Detach: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	switch state {
	case "exited", "died", "failed", "unmet":
		awaitState(t, eng, name, container.StateExited)
	case "paused":
		if err := eng.ContainerPause(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		awaitState(t, eng, name, container.StatePaused)
	}
}

// fabricateVolumes makes volumes without a container and returns the one that is
// garbage.
func fabricateVolumes(t *testing.T, eng *client.Client, owner map[string]map[string]string) string {
	t.Helper()
	for _, name := range []string{"alive", "dead", "other machine"} {
		if _, err := eng.VolumeCreate(t.Context(), volume.CreateOptions{Name: "of-" + name[:4], Labels: owner[name]}); err != nil {
			t.Fatal(err)
		}
	}
	return "of-dead"
}

// fabricateImages makes images with the labels of forks, builds and snapshots, and returns those
// that are garbage.
func fabricateImages(t *testing.T, eng *client.Client, owner map[string]map[string]string) []string {
	t.Helper()
	var garbage []string
	for _, i := range []struct {
		owner  string
		old    bool
		labels map[string]string // without the prefix
		ref    string
		taken  bool
	}{
		{owner: "dead", labels: map[string]string{"fork": "box"}, taken: true},
		{owner: "alive", old: true, labels: map[string]string{"fork": "box"}},
		{owner: "other machine", labels: map[string]string{"fork": "box"}},
		{owner: "other machine", old: true, labels: map[string]string{"fork": "box"}, taken: true},
		{owner: "dead", old: true, labels: map[string]string{"fork": "box", "sandbox": "a-fork-that-somebody-committed"}},
		{owner: "dead", old: true, labels: map[string]string{"image": "built:1"}, ref: "built:1"},
		{owner: "dead", old: true, labels: map[string]string{"image": "built:1", "of": "somebody's own"}},
		{owner: "dead", old: true, labels: map[string]string{"snapshot": "agentenv-snapshot:x"}, ref: "agentenv-snapshot:x"},
		{owner: "dead", old: true, labels: map[string]string{"snapshot": "agentenv-snapshot:x", "of": "somebody's own"}},
		{owner: "dead", old: true, labels: map[string]string{"sandbox": "one-that-somebody-committed", "keep": "true", "expires": "2001-01-01T00:00:00Z"}, ref: "mine:1"},
	} {
		labels := maps.Clone(owner[i.owner])
		for _, key := range []string{"sandbox", "config"} {
			labels["dev.agentenv."+key] = ""
		}
		for key, value := range i.labels {
			labels["dev.agentenv."+key] = value
		}
		created := time.Now()
		if i.old {
			created = created.Add(-2 * time.Hour)
		}
		if id := loadImage(t, eng, i.ref, created, labels); i.taken {
			garbage = append(garbage, "image "+id)
		}
	}
	return garbage
}

// loadImage makes an image with this creation time, and returns its ID.
func loadImage(t *testing.T, eng *client.Client, ref string, created time.Time, labels map[string]string) string {
	t.Helper()
	layer := make([]byte, 1024) // the end of an archive
	img := map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": created, "config": map[string]any{"Labels": labels},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	}
	manifest := map[string]any{"Config": "config.json", "Layers": []string{"layer.tar"}}
	if ref != "" {
		manifest["RepoTags"] = []string{ref}
	}
	config, err := json.Marshal(img)
	list, merr := json.Marshal([]any{manifest})
	if err := errors.Join(err, merr); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, data := range map[string][]byte{"config.json": config, "manifest.json": list, "layer.tar": layer} {
		herr := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))})
		_, werr := w.Write(data)
		err = errors.Join(err, herr, werr)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	res, err := eng.ImageLoad(t.Context(), &archive)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || bytes.Contains(said, []byte("errorDetail")) {
		t.Fatalf("load: %v: %s", err, said)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(config))
}

// TestTheNextStartRemovesImagesOfProgramsThatDied covers images that only their program could use.
func TestTheNextStartRemovesImagesOfProgramsThatDied(t *testing.T) {
	t.Parallel()
	daemon := testdocker.NewDaemon(t, nil)
	busybox := testdocker.Busybox(t)
	daemon.Load(t, busybox)
	eng := daemon.Engine(t)
	cfg := config(t, busybox)
	cfg.Host = daemon.Host()
	alive := open(t, cfg)
	docker.AwaitSweep(alive) // the sweep of this start must not remove them
	garbage := fabricateImages(t, eng, owners(t, eng, alive.ID()))
	list := func() []string {
		found, err := eng.ImageList(t.Context(), image.ListOptions{All: true})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range found {
			ids = append(ids, "image "+i.ID)
		}
		return ids
	}
	before := list()
	docker.ForgetSweep(cfg.Host)
	open(t, cfg) // its Close would cancel the sweep
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		now := list()
		left := slices.ContainsFunc(garbage, func(id string) bool { return slices.Contains(now, id) })
		if !left {
			if len(now) != len(before)-len(garbage) {
				t.Errorf("%d images became %d; %d were to be removed", len(before), len(now), len(garbage))
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left: %q of %q", now, garbage)
		}
	}
}

func TestGCSaysOnceThatThereIsNoEngine(t *testing.T) {
	t.Parallel()
	_, err := (docker.Config{Provider: docker.Provider{Host: "unix:///no/such.sock"}}).GC(t.Context(), primitives.GCOptions{})
	if !errors.Is(err, primitives.ErrUnavailable) || strings.Count(err.Error(), "start the Docker engine") != 1 {
		t.Errorf("got %v", err)
	}
}
