package testdocker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

// Bystanders are what a developer may have on the engine, which no test may touch: a kept sandbox,
// one that has ended and is on the network of sandboxes, an orphan in its grace period, and a
// container, a volume and a network of other programs.
type Bystanders struct {
	eng                                         *client.Client
	dir                                         string   // has envctl
	kept, ended, orphan, foreign, volume, extra string   // names
	networks                                    []string // of sandboxes, before Plant
	before                                      map[string]string
}

// Plant makes bystanders, with envctl as far as it makes such things. The caller removes them.
func Plant(ctx context.Context) (*Bystanders, error) {
	eng, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "agentenv-bystanders-*")
	if err != nil {
		return nil, errors.Join(err, eng.Close())
	}
	name := func(what string) string { return fmt.Sprintf("agentenv-bystander-%s-%d", what, os.Getpid()) }
	b := &Bystanders{
		eng: eng, dir: dir, orphan: name("orphan"), foreign: name("foreign"), volume: name("volume"), extra: name("network"),
	}
	if err := b.plant(ctx, name); err != nil {
		return nil, errors.Join(err, b.Remove(context.WithoutCancel(ctx)))
	}
	return b, nil
}

func (b *Bystanders) plant(ctx context.Context, name func(string) string) error {
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", b.dir, "github.com/agentenv-dev/agentenv/cmd/envctl")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build envctl: %w: %s", err, out)
	}
	busybox, err := ensureBusybox(ctx, b.eng)
	if err != nil {
		return err
	}
	if b.networks, err = networksOfSandboxes(ctx, b.eng); err != nil {
		return err
	}
	if b.kept, err = b.envctl(ctx, "create", "--sandbox", "docker", "--image", busybox, "--network", "none", "--name", name("kept")); err != nil {
		return err
	}
	if b.ended, err = b.envctl(ctx, "create", "--sandbox", "docker", "--image", busybox, "--name", name("ended")); err != nil {
		return err
	}
	kept, err := b.eng.ContainerInspect(ctx, b.kept)
	if err != nil {
		return err
	}
	labels := maps.Clone(kept.Config.Labels)
	delete(labels, "dev.agentenv.keep")
	labels["dev.agentenv.sandbox"] = b.orphan
	_, verr := b.eng.VolumeCreate(ctx, volume.CreateOptions{Name: b.volume})
	_, nerr := b.eng.NetworkCreate(ctx, b.extra, network.CreateOptions{Internal: true})
	err = errors.Join(
		b.eng.ContainerStop(ctx, b.ended, container.StopOptions{}),
		b.startOrphan(ctx, busybox, labels), b.start(ctx, b.foreign, busybox, nil), verr, nerr,
	)
	if err == nil {
		b.before, err = b.describe(ctx)
	}
	return err
}

// startOrphan starts the orphan. Its owner dies when it runs: until then it would be garbage.
func (b *Bystanders) startOrphan(ctx context.Context, image string, labels map[string]string) error {
	owner := exec.CommandContext(ctx, "sleep", "100000")
	if err := owner.Start(); err != nil {
		return err
	}
	defer func() {
		_ = owner.Process.Kill()
		_ = owner.Wait() // it was killed
	}()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", owner.Process.Pid))
	if err != nil {
		return err
	}
	labels["dev.agentenv.owner.pid"] = strconv.Itoa(owner.Process.Pid)
	labels["dev.agentenv.owner.started"] = strings.Fields(string(stat))[21]
	return b.start(ctx, b.orphan, image, labels)
}

// start starts a container.
func (b *Bystanders) start(ctx context.Context, name, image string, labels map[string]string) error {
	config := &container.Config{Image: image, Labels: labels, Cmd: []string{"sleep", "100000"}}
	_, err := b.eng.ContainerCreate(ctx, config, &container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err == nil {
		err = b.eng.ContainerStart(ctx, name, container.StartOptions{})
	}
	return err
}

// describe returns the state of each bystander by its name.
func (b *Bystanders) describe(ctx context.Context) (map[string]string, error) {
	states := map[string]string{}
	record := func(name string, state any, err error) error {
		states[name] = fmt.Sprintf("%+v", state)
		if cerrdefs.IsNotFound(err) {
			states[name], err = "gone", nil
		}
		return err
	}
	var errs []error
	for _, id := range []string{b.kept, b.ended, b.orphan, b.foreign} {
		found, err := b.eng.ContainerInspect(ctx, id)
		if err != nil {
			errs = append(errs, record(id, nil, err))
			continue
		}
		errs = append(errs, record(id, found.State, nil))
		for name, at := range found.NetworkSettings.Networks {
			n, err := b.eng.NetworkInspect(ctx, at.NetworkID, network.InspectOptions{})
			errs = append(errs, record("network "+name+" of "+id, n.ID, err))
		}
	}
	vol, err := b.eng.VolumeInspect(ctx, b.volume)
	errs = append(errs, record(b.volume, vol, err))
	net, err := b.eng.NetworkInspect(ctx, b.extra, network.InspectOptions{})
	errs = append(errs, record(b.extra, net.ID, err))
	listed, err := b.envctl(ctx, "ls", "--sandbox", "docker", "--json")
	for _, id := range []string{b.kept, b.ended} {
		if line := lineOf(listed, id); line != "" {
			states["envctl ls "+id] = line
		}
	}
	return states, errors.Join(append(errs, err)...)
}

// lineOf returns the line of a sandbox in a list, which may also have sandboxes of other programs;
// empty if there is none.
func lineOf(listed, id string) string {
	for line := range strings.Lines(listed) {
		if strings.Contains(line, `"id":"`+id+`"`) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// Check returns an error for each bystander that has changed since Plant.
func (b *Bystanders) Check(ctx context.Context) error {
	now, err := b.describe(ctx)
	for name, was := range b.before {
		if is := now[name]; is != was {
			err = errors.Join(err, fmt.Errorf("the tests have touched %s: it was\n%s\nand is\n%s", name, was, is))
		}
	}
	return err
}

// Remove removes the bystanders that are left.
func (b *Bystanders) Remove(ctx context.Context) error {
	defer func() { _ = b.eng.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	for _, id := range []string{b.orphan, b.foreign} {
		errs = append(errs, b.eng.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	}
	errs = append(errs, b.eng.VolumeRemove(ctx, b.volume, true), b.eng.NetworkRemove(ctx, b.extra))
	for i, err := range errs {
		if cerrdefs.IsNotFound(err) {
			errs[i] = nil
		}
	}
	for _, id := range []string{b.kept, b.ended} {
		if id != "" {
			_, err := b.envctl(ctx, "rm", id)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, leftNetworks(ctx, b.eng, b.networks), os.RemoveAll(b.dir))...)
}

// envctl runs envctl as a user does, and returns what it prints.
func (b *Bystanders) envctl(ctx context.Context, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "envctl"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("envctl %q: %w: %s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
