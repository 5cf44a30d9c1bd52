package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// The paths of the guest in the container. guestDir is a volume if all else is read-only.
const (
	guestDir     = "/agentenv"
	guestProgram = guestDir + "/envrunner"
	guestRoot    = guestDir + "/sandbox"
)

const (
	namePrefix = "agentenv-"
	maxPids    = 1 << 22 // the kernel's maximum
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
		// The engine has no error type for this.
		return "", fmt.Errorf("%w: disk: this engine cannot limit it (overlay2 can on XFS mounted with pquota); leave it out: %w", errors.ErrUnsupported, err)
	}
	return made.ID, err
}

// ociPlatform returns Platform in the engine's form; nil means the engine's own.
func (c config) ociPlatform() *ocispec.Platform {
	p, _ := c.platform() // check has validated it
	if p[0] == "" {
		return nil
	}
	return &ocispec.Platform{OS: p[0], Architecture: p[1], Variant: p[2]}
}

// keepLimits removes a container that lacks a limit which the caller set: an engine whose kernel
// cannot enforce a limit drops it with a warning. For a default limit keepLimits reports the
// warning to Progress, once for a sandbox and not for its forks.
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

// dropped checks whether a warning says that the engine dropped a limit. It returns an error if the
// caller set that limit, else a note for the user, which is empty for other warnings.
func (c config) dropped(warning string) (note string, err error) {
	said := strings.ToLower(warning) // versions differ in case
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

// createWhole makes a container or, if ctx is done first, none. It outlasts ctx for a while,
// because the engine continues to make the container after the request is cancelled.
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
		Cmd:         guestArgs(name, cfg, img),
		WorkingDir:  "/",
		Labels:      labels,
		OpenStdin:   true,
		StdinOnce:   true, // the guest reads EOF when its host ends
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	return c
}

// guestInVolume reports whether the guest's folder is a volume: a read-only container accepts files
// nowhere else, and a built image must have none of the guest's files.
func (c config) guestInVolume() bool { return c.ReadOnly || c.building }

// guestVolume returns a new volume for the guest's folder, which is removed with the container. It
// has the container's labels, so that GC finds it without the container.
func guestVolume(labels map[string]string) mount.Mount {
	labels = maps.Clone(labels)
	delete(labels, labelConfig)
	return mount.Mount{Type: mount.TypeVolume, Target: guestDir, VolumeOptions: &mount.VolumeOptions{Labels: labels}}
}

// guestArgs returns the command line of the container's first process.
func guestArgs(name string, cfg config, img image.InspectResponse) []string {
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
	} else {
		args = append(args, "--workspace-path", cfg.workspaceTarget())
	}
	// A container that is started again keeps its sandbox, and no program connects to its guest.
	adopt, locale := "-", false
	if img.Config != nil {
		locale = hasLocale(img.Config.Env...)
		if folder := img.Config.Labels[labelFolder]; validName(folder) && !cfg.building {
			adopt = folder
		}
		for _, e := range img.Config.Env {
			// The sandbox sets HOME itself.
			if !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, envPrefix) {
				args = append(args, "--env", e)
			}
		}
	}
	if !locale {
		args = append(args, "--env", defaultLocale)
	}
	return append(args, "--adopt", adopt, "--name", name, "--env-from", envPrefix)
}

// defaultLocale is the locale of an image that sets none. Without it programs take the names of
// files and their output for ASCII, and show or refuse the rest.
const defaultLocale = "LANG=C.UTF-8"

// hasLocale reports whether variables set a locale.
func hasLocale(env ...string) bool {
	return slices.ContainsFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == "LANG" || name == "LC_ALL" || name == "LC_CTYPE"
	})
}

// envPrefix and a number form the names of the variables that pass Spec.Env to the first process:
// every user of the machine sees its command line.
const envPrefix = "AGENTENV_VAR_"

// packEnv returns the entries of Spec.Env as such variables.
func packEnv(env []string) []string {
	packed := make([]string, len(env))
	for i, e := range env {
		packed[i] = fmt.Sprintf("%s%d=%s", envPrefix, i, e)
	}
	return packed
}

func hostConfig(cfg config) (*container.HostConfig, error) {
	noInit := false // also if the engine's default is true: the guest is the init
	h := &container.HostConfig{
		AutoRemove:     !cfg.Keep,                         // a kept container stays
		LogConfig:      container.LogConfig{Type: "none"}, // a log would store the guest's stream
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
	if err := cfg.limit(h); err != nil {
		return nil, err
	}
	if cfg.ReadOnly {
		h.Tmpfs = map[string]string{"/tmp": "rw,exec,nosuid,nodev,mode=1777"}
	}
	if cfg.sharedRunner != "" {
		h.Mounts = append(h.Mounts, runnerMount(cfg.sharedRunner))
	}
	h.Mounts = append(h.Mounts, cfg.folders.mounts()...)
	return h, nil
}

// Only trying shows whether a guest can move to a socket, see package fastpath: the engine may be
// in a virtual machine, or may not see the folders of this program.

const (
	// linkDir is the mount point of a container's socket folder; labelLink names the folder.
	linkDir   = guestDir + "/link"
	labelLink = labelPrefix + "link"
)

// withLink makes a container with a folder for the socket, or without one if the engine cannot
// mount it.
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
	defer unlock() // after the container exists
	mounts := host.Mounts
	host.Mounts = append(mounts, mount.Mount{Type: mount.TypeBind, Source: folder, Target: linkDir, ReadOnly: true})
	inside.Labels[labelLink] = folder
	made, err := create()
	if cerrdefs.IsInvalidArgument(err) {
		host.Mounts = mounts
		inside.Labels[labelLink] = ""
		if without, werr := create(); werr == nil {
			_ = fastpath.Remove(eng.DaemonHost(), name) // empty and unused
			return without, nil
		}
	}
	if err != nil && fresh {
		_ = fastpath.Remove(eng.DaemonHost(), name)
	}
	return made, err
}

// linkOf returns the socket folder of an existing container. It returns "" unless this program
// would have made the same folder: the label alone is not trusted.
func linkOf(eng *client.Client, labels map[string]string) string {
	folder := fastpath.Folder(eng.DaemonHost(), labels[labelSandbox])
	if labels[labelLink] != folder {
		return ""
	}
	return folder
}

// expect opens a socket in the folder of a container. Without a socket the guest keeps the streams
// of the engine.
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

// links removes the socket folders of containers that no longer exist.
func (g *collector) links(ctx context.Context, found []container.Summary) {
	if g.opts.DryRun {
		return
	}
	exist := make(map[string]bool, len(found))
	for _, c := range found {
		exist[c.Labels[labelSandbox]] = true
	}
	// Ask the engine for containers that are newer than the list.
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
