package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
)

// Where the guest lives in the container. Its folder is a volume where all else is
// read-only.
const (
	guestDir     = "/agentenv"
	guestProgram = guestDir + "/envrunner"
	guestRoot    = guestDir + "/sandbox"
	workspaceDir = "/workspace" // of Spec.Workspace, without a WorkspacePath
)

const (
	namePrefix = "agentenv-"
	maxPids    = 1 << 22 // no kernel takes more
)

// makeContainer makes the container and returns its ID.
func makeContainer(ctx context.Context, eng *client.Client, name string, cfg config, img image.InspectResponse) (string, error) {
	host, err := hostConfig(cfg)
	if err != nil {
		return "", err
	}
	if cfg.Network == "" {
		own, err := sandboxNetwork(ctx, eng)
		if err != nil {
			return "", err
		}
		host.NetworkMode = container.NetworkMode(own)
	}
	if err := engineLimits(ctx, eng, cfg, host); err != nil {
		return "", err
	}
	inside := containerConfig(name, cfg, img)
	if cfg.guestInVolume() {
		host.Mounts = append(host.Mounts, guestVolume(inside.Labels))
	}
	inside.ExposedPorts, host.PortBindings = cfg.portBindings()
	made, err := withLink(eng, name, cfg, inside, host, func() (container.CreateResponse, error) {
		made, err := createWhole(ctx, eng, func(ctx context.Context) (container.CreateResponse, error) {
			made, err := eng.ContainerCreate(ctx, inside, host, nil, cfg.ociPlatform(), name)
			if cerrdefs.IsInternal(err) && cfg.Disk == 0 && host.StorageOpt != nil {
				host.StorageOpt = nil // its XFS has no quotas
				made, err = eng.ContainerCreate(ctx, inside, host, nil, cfg.ociPlatform(), name)
			}
			return made, err
		})
		if err == nil {
			err = keepLimits(ctx, eng, cfg, img, host, made)
		}
		return made, err
	})
	switch {
	case cerrdefs.IsConflict(err):
		return "", fmt.Errorf("%w; choose another name", err)
	case cerrdefs.IsInternal(err) && cfg.Disk > 0:
		// It has no kind of error for this.
		return "", fmt.Errorf("%w: disk: this engine cannot limit it (overlay2 can on XFS mounted with pquota); leave it out: %w", errors.ErrUnsupported, err)
	}
	return made.ID, err
}

// ociPlatform is Platform for the engine; nil is its own.
func (c config) ociPlatform() *ocispec.Platform {
	p, _ := c.platform() // was checked
	if p[0] == "" {
		return nil
	}
	return &ocispec.Platform{OS: p[0], Architecture: p[1], Variant: p[2]}
}

// keepLimits removes a container that lacks a limit which the caller set: an engine whose
// kernel cannot enforce a limit drops it with a warning. For a default limit keepLimits
// logs the warning, once for a sandbox and not for its forks.
func keepLimits(ctx context.Context, eng *client.Client, cfg config, img image.InspectResponse, host *container.HostConfig, made container.CreateResponse) error {
	forked := img.Config != nil && isFork(img.Config.Labels)
	if !forked && cfg.Logger != nil {
		cfg.warnUnlimited(host)
	}
	for _, warning := range made.Warnings {
		note, err := cfg.dropped(warning)
		if err != nil {
			return errors.Join(err, removeContainer(ctx, eng, made.ID))
		}
		if note != "" && !forked {
			cfg.tell(note)
		}
	}
	return nil
}

// dropped says of a warning that a limit was left out: an error if it was asked for,
// else a note for people.
func (c config) dropped(warning string) (note string, err error) {
	said := strings.ToLower(warning) // versions differ in that
	refuse := func(field, advice string) (string, error) {
		return "", fmt.Errorf("%w: %s: this engine cannot limit it; %s, or enable the control group on its machine: the engine says: %s", errors.ErrUnsupported, field, advice, warning)
	}
	switch {
	case strings.Contains(said, "memory limit ") && strings.Contains(said, "discarded"):
		if c.Memory > 0 {
			return refuse("memory", "leave it out, or set none")
		}
		return "the sandbox has no limit of memory, because the engine cannot set one: " + warning, nil
	case strings.Contains(said, "pids limit ") && strings.Contains(said, "discarded"):
		if c.Pids > 0 {
			return refuse("pids", "leave it out, or set -1")
		}
		return "the sandbox has no limit of processes (pids), because the engine cannot set one: " + warning, nil
	case strings.Contains(said, "swap limit "):
		// The memory itself is limited, by the caller or by default.
		return "the sandbox may swap as much as there is, because the engine cannot keep it from that: " + warning, nil
	}
	return "", nil
}

// createWhole makes a container or, if ctx is done first, none. It outlasts
// ctx for a while: the engine goes on making the container when the request is cancelled.
func createWhole(ctx context.Context, eng *client.Client, create func(context.Context) (container.CreateResponse, error)) (container.CreateResponse, error) {
	if err := ctx.Err(); err != nil {
		return container.CreateResponse{}, err
	}
	patient, cancel := patience.Outlast(ctx, stateTimeout)
	defer cancel()
	made, err := create(patient)
	if ctx.Err() == nil {
		return made, err
	}
	if err == nil {
		err = removeContainer(ctx, eng, made.ID)
	}
	return container.CreateResponse{}, errors.Join(ctx.Err(), err)
}

func containerConfig(name string, cfg config, img image.InspectResponse) *container.Config {
	labels := sandboxLabels(name, cfg)
	maps.Copy(labels, cfg.Labels)
	labels[labelConfig] = describeConfig(cfg)
	labels[labelArch], labels[labelMounted] = img.Architecture, cfg.folders.label()
	labels[labelLink] = ""
	if img.Config == nil || !isFork(img.Config.Labels) {
		labels[labelFork] = ""
	}
	c := &container.Config{
		Image:       cfg.Image,
		User:        cfg.User,
		Env:         packEnv(cfg.Environ()),
		Entrypoint:  []string{guestProgram},
		Cmd:         guestArgs(cfg, img),
		WorkingDir:  "/",
		Labels:      labels,
		OpenStdin:   true,
		StdinOnce:   true, // the guest sees the end of its host
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	return c
}

// guestInVolume reports whether the guest's folder is a volume: a read-only container
// takes files nowhere else, and the image that is made of a build has none of the guest's.
func (c config) guestInVolume() bool { return c.ReadOnly || c.building }

// guestVolume is a new volume for the guest's folder. It has the container's labels,
// so that GC finds it without the container, with which it ends.
func guestVolume(labels map[string]string) mount.Mount {
	labels = maps.Clone(labels)
	delete(labels, labelConfig)
	return mount.Mount{Type: mount.TypeVolume, Target: guestDir, VolumeOptions: &mount.VolumeOptions{Labels: labels}}
}

// guestArgs is the command line of the container's first process.
func guestArgs(cfg config, img image.InspectResponse) []string {
	stay := cfg.grace()
	if cfg.Keep && cfg.Expires == 0 {
		stay = -1
	}
	args := []string{"guest", "--root", guestRoot, "--stay", stay.String(), "--leave-files"}
	if cfg.Keep && cfg.Expires > 0 {
		args = append(args, "--min-age", cfg.Expires.String())
	}
	if cfg.Workspace != "" {
		args = append(args, "--workspace", cfg.workspaceTarget())
	}
	// The sandbox of a container that is started again is the one that it had.
	adopt := "-"
	if img.Config != nil {
		if folder := img.Config.Labels[labelFolder]; validName(folder) && !cfg.building {
			adopt = folder
		}
		for _, e := range img.Config.Env {
			// HOME is the sandbox's.
			if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, envPrefix) {
				args = append(args, "--env", e)
			}
		}
	}
	return append(args, "--adopt", adopt, "--env-from", envPrefix)
}

// envPrefix and a number are the names of the variables in which the first process
// gets those of Spec.Env: every user of the machine sees its command line.
const envPrefix = "AGENTENV_VAR_"

// packEnv puts what Spec.Env says into such variables.
func packEnv(env []string) []string {
	packed := make([]string, len(env))
	for i, e := range env {
		packed[i] = fmt.Sprintf("%s%d=%s", envPrefix, i, e)
	}
	return packed
}

func hostConfig(cfg config) (*container.HostConfig, error) {
	noInit := false // also where the engine's default is one: the guest is
	h := &container.HostConfig{
		AutoRemove:     !cfg.Keep,                         // what was in a kept one that dies may be wanted
		LogConfig:      container.LogConfig{Type: "none"}, // it would keep the guest's stream
		NetworkMode:    container.NetworkMode(cfg.Network),
		CapDrop:        []string{"ALL"},
		CapAdd:         cfg.CapAdd,
		SecurityOpt:    []string{"no-new-privileges"},
		ReadonlyRootfs: cfg.ReadOnly,
		IpcMode:        container.IPCModePrivate,
		Init:           &noInit,
		Resources:      container.Resources{Ulimits: []*container.Ulimit{{Name: "core"}}},
	}
	profile, err := cfg.seccompProfile()
	if err != nil {
		return nil, err
	}
	if profile != "" {
		h.SecurityOpt = append(h.SecurityOpt, "seccomp="+profile)
	}
	switch {
	case cfg.Memory == 0:
		h.Memory = defaultMemory
	case cfg.Memory > 0:
		h.Memory = int64(cfg.Memory)
	}
	h.MemorySwap = h.Memory
	pids := cfg.Pids
	switch {
	case pids == 0:
		pids = defaultPids
	case pids < 0:
		pids = -1
	case pids > maxPids:
		return nil, cfg.invalid("pids", fmt.Sprintf("%d are too many; give at most %d, or a negative number for no limit", pids, maxPids))
	}
	h.PidsLimit = &pids
	if cfg.ReadOnly {
		h.Tmpfs = map[string]string{"/tmp": "rw,exec,nosuid,nodev,mode=1777"}
	}
	if cfg.sharedRunner != "" {
		h.Mounts = append(h.Mounts, runnerMount(cfg.sharedRunner))
	}
	h.Mounts = append(h.Mounts, cfg.folders.mounts()...)
	return h, nil
}

// Whether a guest can move to a socket, see package fastpath, is found out by trying: the
// engine may be in a virtual machine, or may not see the folders of this program.

const (
	// linkDir is where a container has its folder, labelLink says which it is.
	linkDir   = guestDir + "/link"
	labelLink = labelPrefix + "link"
)

// withLink makes a container that has a folder for the socket, or one without if the
// engine cannot mount it.
func withLink(eng *client.Client, name string, cfg config, inside *container.Config, host *container.HostConfig,
	create func() (container.CreateResponse, error),
) (container.CreateResponse, error) {
	if cfg.NoSocket {
		return create()
	}
	folder, fresh, unlock, ok := fastpath.Hold(eng.DaemonHost(), name)
	if !ok {
		return create()
	}
	defer unlock() // then there is a container
	mounts := host.Mounts
	host.Mounts = append(mounts, mount.Mount{Type: mount.TypeBind, Source: folder, Target: linkDir, ReadOnly: true})
	inside.Labels[labelLink] = folder
	made, err := create()
	if cerrdefs.IsInvalidArgument(err) {
		host.Mounts = mounts
		inside.Labels[labelLink] = ""
		if without, werr := create(); werr == nil {
			_ = fastpath.Remove(eng.DaemonHost(), name) // empty, and of no use
			return without, nil
		}
	}
	if err != nil && fresh {
		_ = fastpath.Remove(eng.DaemonHost(), name)
	}
	return made, err
}

// linkOf is the folder of an existing container, if it is where this program would
// have made it: the label alone is not trusted.
func linkOf(eng *client.Client, labels map[string]string) string {
	folder := fastpath.Folder(eng.DaemonHost(), labels[labelSandbox])
	if labels[labelLink] != folder {
		return ""
	}
	return folder
}

// expect opens a socket in the folder of a container. Without one the guest stays
// where it is.
func expect(folder string, cfg config) fastpath.Listener {
	if cfg.NoSocket || folder == "" {
		return fastpath.Listener{}
	}
	r, err := fastpath.Listen(folder, linkDir)
	if err != nil && cfg.Logger != nil {
		cfg.Logger.Debug("no socket for the guest", "error", err)
	}
	return r
}

// links removes the folders of containers that are gone.
func (g *collector) links(ctx context.Context, found []container.Summary) {
	if g.opts.DryRun {
		return
	}
	exist := make(map[string]bool, len(found))
	for _, c := range found {
		exist[c.Labels[labelSandbox]] = true
	}
	// What was made since the list was is asked for.
	exists := func(name string) bool {
		if exist[name] {
			return true
		}
		_, err := g.eng.ContainerInspect(ctx, name)
		return !cerrdefs.IsNotFound(err)
	}
	if err := fastpath.RemoveOrphans(g.eng.DaemonHost(), exists); err != nil {
		g.errs = append(g.errs, err)
	}
}
