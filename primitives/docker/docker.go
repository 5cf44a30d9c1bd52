// Package docker implements a sandbox as a container of a Docker engine.
//
// It creates the container, puts one static program into it and talks to that program, the guest,
// over the standard streams of the container's first process. The guest does everything except for
// the life cycle of the container, see package guest. The image needs nothing for this: no shell,
// no libc.
//
// The container ends when no client has been connected to it for Spec.Grace: the guest, its first
// process, counts that (--stay). The engine then removes the container. So a program that crashes
// leaves nothing behind.
//
// Where to look, by file:
//
//	config, security                the settings and their checks; the seccomp filter
//	container, install, program     create a container; put the runner and an agent into it
//	limits                          defaults and limits of memory, processes, processors and disk
//	workspace                       where the workspace is, and whose
//	mounts, folders, protect        what may be mounted; verify it; what is read-only in it
//	network                         the network that sandboxes share; ports
//	driver, pause, usage            connect to the guest; pause and resume; what a container uses
//	terminate, state, history       end a container; how and when it ended
//	labels, list, gc                owners; all sandboxes; orphans
//	image, build, snapshot          check images, build them, make them of sandboxes; forks
//	examine, errors                 what an engine is and lacks; errors with advice
//
// hostConfig in container.go sets the capabilities, the seccomp filter, the mounts and the
// configured network; limit and engineLimits in limits.go set the limits. internal/engine connects to engines,
// internal/images pulls and checks images, internal/hostfile holds mounted folders open,
// internal/fastpath moves the guest to a Unix socket.
//
// # Orphans
//
// Everything that this package makes on an engine has labels that name its owner (machine,
// boot, process number and start time), its session, and until when it is kept.
// An owner is dead if this machine can see that its process does not run. The owner of
// another machine or in another container is unknown: neither alive nor dead.
// [Provider.List] shows sandboxes, [Provider.GC] removes garbage, and
// [Provider.Create] does the same in the background, at most once a minute in a program:
//
//	container                         owner    List     GC
//	created, never started            alive    -        leaves it: it is being made
//	created, never started            dead     lost     removes it
//	created, never started            unknown  lost     removes it when it is an hour old
//	running                           alive    running  leaves it
//	running, in its grace             dead     running  leaves it: it ends by itself; removes it with NoGrace
//	running, clients attached         any      running  leaves it
//	running, kept                     any      running  leaves it; its guest ends it after it has expired
//	paused                            alive    paused   leaves it
//	paused                            dead     paused   removes it, unless clients are attached: no grace runs
//	paused, kept                      dead     paused   leaves it until it has expired
//	ended, kept, and expired          any      exited   removes it
//	terminated, kept                  any      exited   removes it: its program died meanwhile
//	ended before a client came, kept  any      exited   removes it: nobody knows it
//	ended or died, kept               any      exited   leaves it until it has expired: see [Provider.Remove]
//	ended, not removed by the engine  alive    exited   leaves it: the engine is about to
//	ended, not removed by the engine  dead     exited   removes it
//	ended, not removed by the engine  unknown  exited   removes it when it is an hour old
//	dead: the engine failed           any      lost     removes it
//	being removed by the engine       any      -        leaves it
//
// GC leaves a running or paused container with an unknown owner, and a paused one to which
// other programs were attached: [Provider.Attach] resumes it, [Provider.Remove] removes it.
// A container whose name is not the sandbox's ID belongs to a user, who made it from a
// snapshot. GC removes volumes without a container like a container that was never
// started, images of forks without a container likewise, and
// folders of sockets as soon as they have no container and none is being made.
//
// The network of sandboxes stays until [Provider.GC] finds no container on it, an hour after it
// was made or with NoGrace.
//
// Images with a name are results. They stay until [Provider.RemoveImage] removes a built
// image and [Provider.RemoveSnapshot] a snapshot. A program that dies in
// [Provider.BuildImage] or Snapshot leaves nothing, or a complete image that
// [Provider.Images] or [Provider.Snapshots] lists. The sandbox of a build is like any other.
package docker

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

const backend = "docker"

// Create makes a sandbox: a container of spec.Image, which is required, with a guest as its first
// process. If the image lacks what spec.Install says, the container is made of an image that is
// built on it, see [Provider.BuildImage]. ctx applies to the creation only. If Create fails,
// nothing is left of the sandbox.
//
// Errors: fs.ErrInvalid for a bad setting, fs.ErrNotExist for an image, a
// network or a folder that does not exist, fs.ErrExist for a name that is taken,
// fs.ErrPermission for an engine or a registry that refuses this user,
// errors.ErrUnsupported for a platform that cannot run the guest,
// [primitives.ErrUnavailable] for an engine that does not answer and a container
// whose guest does not.
func (p Provider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	cfg, err := p.config(ctx, spec)
	if err != nil {
		return nil, wrap("create", spec.Image, err)
	}
	s, err := newWithProgram(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// CheckSpec implements primitives.SpecChecker.
func (p Provider) CheckSpec(spec primitives.Spec) error {
	return config{Spec: spec, Provider: p}.check()
}

// config checks the settings and finds the runner.
func (p Provider) config(ctx context.Context, spec primitives.Spec) (cfg config, err error) {
	cfg = config{Spec: spec, Provider: p}
	if err := cfg.check(); err != nil {
		return cfg, err
	}
	cfg.Runner, err = p.findRunner(ctx)
	return cfg, err
}

// findRunner returns the runner for the engine, or "" if Provider.Runner is nil.
func (p Provider) findRunner(ctx context.Context) (string, error) {
	if p.Runner == nil {
		return "", nil
	}
	arch, err := p.arch(ctx)
	if err != nil {
		return "", err
	}
	return p.Runner(ctx, "linux", arch)
}

// newSandbox makes a container of cfg.Image.
func newSandbox(ctx context.Context, cfg config) (*guest.Sandbox, error) {
	d, err := create(ctx, cfg)
	if err != nil {
		return nil, wrap("create", cfg.Image, err)
	}
	return d.sandbox, nil
}

func create(ctx context.Context, cfg config) (_ *driver, err error) {
	if err := errors.Join(cfg.check(), cfg.checkRunner()); err != nil {
		return nil, err
	}
	eng, err := engine.Connect(cfg.Host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, engine.Release(eng))
		}
	}()
	if cfg, err = cfg.openFolders(eng.DaemonHost()); err != nil {
		return nil, err
	}
	defer cfg.folders.close()
	// Negotiate now: the client's lazy negotiation is not safe for concurrent first calls.
	eng.NegotiateAPIVersion(ctx)
	sweep := startSweep(ctx, eng, cfg.Logger)
	defer func() {
		if err != nil {
			sweep.stop()
		}
	}()
	img, err := images.Ensure(ctx, eng, cfg.wantedImage())
	if err != nil {
		return nil, engine.Explain(eng, err)
	}
	eng = engine.Share(eng)
	if err := checkImage(ctx, eng, cfg, img); err != nil {
		return nil, engine.Explain(eng, err)
	}
	if err := guestRuns(ctx, eng, cfg, img); err != nil {
		return nil, engine.Explain(eng, err)
	}
	name := cfg.Name
	if name == "" {
		name = namePrefix + newID()
	}
	cfg.Logger = logOf(cfg, name)
	cfg.runsAs = cfg.User
	if cfg.runsAs == "" && img.Config != nil {
		cfg.runsAs = img.Config.User
	}
	cfg.ownFolders = cfg.makesFolders()
	if !cfg.Keep { // or the container could not be started again once the file is gone
		cfg.sharedRunner = fastpath.Runner(eng.DaemonHost(), cfg.Runner)
	}
	if cfg.sharedRunner == "" {
		if cfg.RunnerSum, err = runnerSum(cfg.Runner); err != nil {
			return nil, err
		}
	}
	put := func(id string) error { return install(ctx, eng, id, cfg) }
	d, err := launch(ctx, eng, name, cfg, img, put)
	if (cfg.sharedRunner != "" || !cfg.NoSocket) && mayBeMounts(err) {
		cfg.sharedRunner, cfg.NoSocket = "", true
		cfg.Logger.Debug("container is made again, without mounts", "error", err)
		var unread error
		if cfg.RunnerSum, unread = runnerSum(cfg.Runner); unread != nil {
			return nil, unread
		}
		// If this fails, too, the first error is about what cfg says.
		if again, aerr := launch(ctx, eng, name, cfg, img, put); aerr == nil {
			d, err = again, nil
		}
	}
	if err != nil {
		return nil, engine.Explain(eng, err)
	}
	d.sweep = sweep
	d.handOver()
	return d, nil
}

// launch makes a container, calls put to add what its guest needs, starts it and connects to the
// guest. If it fails nothing is left.
func launch(ctx context.Context, eng *client.Client, name string, cfg config, img image.InspectResponse, put func(id string) error) (*driver, error) {
	for attempt := 1; ; attempt++ {
		d, err := launchOnce(ctx, eng, name, cfg, img, put)
		// GC in another program may have removed the network before the start.
		if cfg.Network != "" || !missesNetwork(err) || attempt == launchAttempts || ctx.Err() != nil {
			return d, err
		}
		cfg.Logger.Debug("container is made again: its network was removed", "attempt", attempt, "error", err)
	}
}

// logOf returns the logger of one sandbox; never nil.
func logOf(cfg config, id string) hclog.Logger {
	if cfg.Logger == nil {
		return hclog.NewNullLogger()
	}
	return cfg.Logger.With("sandbox", id, "type", backend)
}

// launchAttempts bounds the attempts while other programs remove the network of sandboxes.
const launchAttempts = 5

func launchOnce(ctx context.Context, eng *client.Client, name string, cfg config, img image.InspectResponse, put func(id string) error) (*driver, error) {
	id, err := makeContainer(ctx, eng, name, cfg, img)
	if err != nil {
		return nil, err
	}
	d := &driver{
		eng: eng, id: name, container: id, program: guestProgram, first: true,
		cfg: cfg, arch: img.Architecture, volumes: cfg.imageVolumes(img),
	}
	if err = put(id); err == nil {
		err = d.open(ctx, fastpath.Folder(eng.DaemonHost(), name), cfg)
	}
	if err == nil {
		err = errors.Join(cfg.folders.prove(ctx, d.sandbox), cfg.checkWorkspaceAt(d.sandbox.Paths().Workspace))
		if err == nil {
			err = cfg.checkEntry(ctx, d.sandbox)
		}
		if err != nil {
			err = errors.Join(err, d.sandbox.Close())
		}
	}
	if err != nil {
		err = explainStart(ctx, eng, cfg, img, err)
		return nil, errors.Join(err, removeContainer(ctx, eng, id), fastpath.Remove(eng.DaemonHost(), name))
	}
	return d, nil
}

// Attach returns a handle of a live sandbox by its ID. If another program made the sandbox both
// share it. Attach resumes a paused sandbox. If the sandbox was made by another release of this
// package, whose guest speaks another version of the protocol, Attach installs the guest of this
// release beside that guest, which continues to serve the programs that use it.
//
// An ID without a sandbox is fs.ErrNotExist, also if it is a container that this package did not
// make. A sandbox whose container does not run is [primitives.ErrUnavailable], until it is removed.
func (p Provider) Attach(ctx context.Context, id string) (primitives.EnvironmentPrimitive, error) {
	s, err := attach(ctx, config{Provider: p}, id)
	if _, is := errors.AsType[*guest.VersionError](err); is && p.Runner != nil {
		cfg := config{Provider: p}
		if cfg.Runner, err = p.findRunner(ctx); err == nil {
			s, err = attach(ctx, cfg, id)
		}
	}
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	return s, nil
}

func attach(ctx context.Context, cfg config, id string) (*guest.Sandbox, error) {
	eng, found, err := find(ctx, cfg, id)
	if err != nil {
		return nil, err
	}
	s, err := attachTo(ctx, eng, found, cfg)
	if err != nil {
		return nil, errors.Join(err, engine.Release(eng))
	}
	return s, nil
}

// find returns the container of a sandbox, in any state, and a client of its engine. The caller
// must call engine.Release.
func find(ctx context.Context, cfg config, id string) (*client.Client, container.InspectResponse, error) {
	none := container.InspectResponse{}
	if !validName(id) {
		return nil, none, fmt.Errorf("%w: no container can have this name", fs.ErrNotExist)
	}
	eng, err := engine.Connect(cfg.Host)
	if err != nil {
		return nil, none, err
	}
	found, err := eng.ContainerInspect(ctx, id)
	switch {
	case err != nil:
		err = engine.Explain(eng, err)
	case found.Config == nil || found.State == nil || !isSandbox(found.Name, found.Config.Labels):
		err = fmt.Errorf("%w: the container was not made as a sandbox", fs.ErrNotExist)
	}
	if err != nil {
		return nil, none, errors.Join(err, eng.Close())
	}
	return engine.Share(eng), found, nil
}

// attachTo attaches to the container that was found. If it fails eng stays open.
func attachTo(ctx context.Context, eng *client.Client, found container.InspectResponse, cfg config) (*guest.Sandbox, error) {
	if !found.State.Running {
		return nil, notRunning(found)
	}
	if found.State.Paused {
		if err := eng.ContainerUnpause(ctx, found.ID); err != nil && !cerrdefs.IsConflict(err) {
			return nil, engine.Explain(eng, err)
		}
	}
	made := configOf(found.Config.Labels)
	made.Host, made.Logger = cfg.Host, logOf(cfg, strings.TrimPrefix(found.Name, "/"))
	var err error
	if made.folders, err = foldersOf(found.Config.Labels); err != nil {
		return nil, err
	}
	made.sharedRunner = mountedRunner(found.Mounts)
	d := &driver{
		eng: eng, id: strings.TrimPrefix(found.Name, "/"), container: found.ID, program: guestProgram,
		cfg: made, arch: found.Config.Labels[labelArch], volumes: mountedVolumes(found.Mounts),
	}
	if found.Config.Labels[labelFork] != "" {
		d.forkedFrom = found.Image
	}
	joined := made
	joined.NoSocket = cfg.NoSocket
	enter := func() error { return d.open(ctx, linkOf(eng, found.Config.Labels), joined) }
	if found.State.Paused {
		enter = afterResume(ctx, enter)
	}
	err = enter()
	if other, is := errors.AsType[*guest.VersionError](err); is && cfg.Runner != "" {
		made.Logger.Info("guest of this release is installed beside another", "ours", other.Ours, "theirs", other.Theirs)
		d.cfg.Runner = cfg.Runner // for copies, whose image has the other guest
		if d.program, d.cfg.RunnerSum, err = installBeside(ctx, eng, found.ID, cfg.Runner); err == nil {
			err = enter()
		}
	}
	if err != nil {
		return nil, explainJoin(ctx, eng, found.ID, err)
	}
	if err := made.folders.prove(ctx, d.sandbox); err != nil {
		return nil, errors.Join(engine.Explain(eng, err), d.sandbox.Close())
	}
	return d.handOver(), nil
}

// afterResume returns a function that calls enter again for a moment after a resume, while the
// engine says that the container is paused. Some engines, such as 20.10, learn of a pause after its
// end.
func afterResume(ctx context.Context, enter func() error) func() error {
	return func() error {
		tick := time.NewTicker(stateInterval)
		defer tick.Stop()
		for range stateAttempts {
			err := enter()
			if !cerrdefs.IsConflict(err) {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return err
			}
		}
		return enter()
	}
}

func newID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
