package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// owners returns the labels of things whose program lives, has died, or ran
// elsewhere.
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

// TestWhatGCTakes makes everything that can be left on an engine of its own, which
// nobody else cleans.
func TestWhatGCTakes(t *testing.T) {
	daemon := testdocker.NewDaemon(t, nil)
	busybox := testdocker.Busybox(t)
	daemon.Load(t, busybox)
	eng := daemon.Engine(t)
	cfg := config(t, busybox)
	cfg.Host = daemon.Host()
	owner := owners(t, eng, open(t, cfg).ID())
	listed := map[string]primitives.Status{}
	var taken, takenWithoutGrace []string
	later, past := time.Now().Add(time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339)
	for _, c := range []struct {
		name, owner, state string
		kept, expires      string
		otherName, inUse   bool
		status             primitives.Status // in the list; empty is not there
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
	taken = append(taken, "volume "+fabricateVolumes(t, eng, owner), "image "+fabricateImages(t, eng, owner["dead"], past, later))

	list, err := docker.List(t.Context(), cfg)
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
		opts docker.GCOptions
		want []string
	}{
		{docker.GCOptions{DryRun: true}, taken},
		{docker.GCOptions{}, taken},
		{docker.GCOptions{}, nil},
		{docker.GCOptions{NoGrace: true, DryRun: true}, takenWithoutGrace},
		{docker.GCOptions{NoGrace: true}, takenWithoutGrace},
	} {
		found, err := docker.GC(t.Context(), cfg, c.opts)
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
	if list, err = docker.List(t.Context(), cfg); err != nil || len(list) != 8 {
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
	case "exited", "died":
		ended, failed := eng.ContainerWait(t.Context(), made.ID, container.WaitConditionNotRunning)
		select {
		case <-ended:
		case err := <-failed:
			t.Fatal(err)
		}
	case "paused":
		if err := eng.ContainerPause(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
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

// fabricateImages makes one that has expired, whose name it returns, and others.
func fabricateImages(t *testing.T, eng *client.Client, labels map[string]string, past, later string) string {
	t.Helper()
	for name, expires := range map[string]string{"past:1": past, "later:1": later, "ever:1": ""} {
		changes := []string{`LABEL dev.agentenv.keep=true dev.agentenv.expires="` + expires + `"`}
		for _, key := range []string{"pid", "pidns", "started", "boot"} {
			key = "dev.agentenv.owner." + key
			changes = append(changes, "LABEL "+key+`="`+labels[key]+`"`)
		}
		empty := bytes.NewReader(make([]byte, 1024)) // the end of an archive
		body, err := eng.ImageImport(t.Context(), image.ImportSource{Source: empty, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
		if err == nil {
			_, err = io.Copy(io.Discard, body)
			_ = body.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return "past:1"
}

func TestGCSaysOnceThatThereIsNoEngine(t *testing.T) {
	_, err := docker.GC(t.Context(), docker.Config{Host: "unix:///no/such.sock"}, docker.GCOptions{})
	if !errors.Is(err, primitives.ErrUnavailable) || strings.Count(err.Error(), "start the Docker engine") != 1 {
		t.Errorf("got %v", err)
	}
}
