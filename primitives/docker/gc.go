package docker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// GC removes orphans from the engine, as the table in the package's documentation
// says. It never removes a sandbox that has a client or is kept. GC may run at any time, in
// many programs at once; [Provider.Create] runs it in the background, at most once a minute.
//
// If something cannot be removed GC continues. It returns what it removed together with the error.
func (p Provider) GC(ctx context.Context, opts primitives.GCOptions) ([]primitives.Garbage, error) {
	var removed []primitives.Garbage
	err := p.ask("gc", func(eng *client.Client) error {
		// Ping first: a missing engine gives one error, not one for each list.
		_, err := eng.Ping(ctx)
		if err == nil {
			removed, err = (&collector{eng: eng, opts: opts}).collect(ctx)
		}
		return err
	})
	return removed, err
}

// collector is one run of GC.
type collector struct {
	eng     *client.Client
	opts    primitives.GCOptions
	inNew   bool         // it runs in Create, which is about to use the network
	log     hclog.Logger // nil in GC, which returns what was removed
	removed []primitives.Garbage
	errs    []error
	clock   time.Time // the engine's time at the first request
}

func (g *collector) collect(ctx context.Context) ([]primitives.Garbage, error) {
	g.containers(ctx)
	g.volumes(ctx)
	g.images(ctx)
	if !g.inNew {
		g.networks(ctx)
	}
	return g.removed, errors.Join(g.errs...)
}

// take removes garbage and records it.
func (g *collector) take(found primitives.Garbage, remove func() error) {
	log := g.log
	if log == nil {
		log = hclog.NewNullLogger()
	}
	log = log.With("sandbox", found.ID, "type", backend, "kind", found.Kind, "why", found.Why)
	log.Debug("orphan found")
	if !g.opts.DryRun {
		err := remove()
		switch {
		case cerrdefs.IsNotFound(err), cerrdefs.IsConflict(err):
			return // another program uses it, or has removed it
		case err != nil:
			if !errors.Is(err, context.Canceled) { // the sandbox that started the sweep was closed
				log.Warn("orphan cannot be removed", "error", err)
			}
			g.errs = append(g.errs, err)
			return
		}
		log.Info("orphan removed")
	}
	g.removed = append(g.removed, found)
}

// containers removes garbage containers with their volumes.
func (g *collector) containers(ctx context.Context) {
	found, err := listContainers(ctx, g.eng)
	if err != nil {
		g.errs = append(g.errs, err)
		return
	}
	g.links(ctx, found)
	for _, c := range found {
		why, err := g.garbageReason(ctx, c)
		if why != "" {
			// Its program may have died after the list, in which its state is older: what was being made is in its grace now.
			// Nobody else starts it, so a state from after the death of the program is the last one.
			if c.State, err = stateNow(ctx, g.eng, c.ID); err == nil {
				why, err = g.garbageReason(ctx, c)
			} else {
				why = ""
			}
		}
		if cerrdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			g.errs = append(g.errs, err)
		}
		if why == "" || ctx.Err() != nil {
			continue
		}
		g.take(primitives.Garbage{Kind: "container", ID: c.Labels[labelSandbox], Why: why, Created: time.Unix(c.Created, 0).UTC()}, func() error {
			return removeContainer(ctx, g.eng, c.ID)
		})
	}
}

// stateNow asks for the state of one container.
func stateNow(ctx context.Context, eng *client.Client, id string) (container.ContainerState, error) {
	found, err := eng.ContainerInspect(ctx, id)
	if err != nil {
		return "", err
	}
	return found.State.Status, nil
}

// garbageReason returns why a container is garbage, or "" if it is not.
func (g *collector) garbageReason(ctx context.Context, c container.Summary) (string, error) {
	by := findOwner(c.Labels)
	switch c.State {
	case container.StateRemoving:
		return "", nil
	case container.StateDead:
		return "the engine failed to remove it", nil
	case container.StateCreated:
		return g.unused(ctx, by, time.Unix(c.Created, 0), "its program died before it was started")
	case container.StateExited:
		return g.ended(ctx, c, by)
	}
	kept, until := keptUntil(c.Labels)
	switch {
	case by != owner.Dead:
		return "", nil // its owner may use it
	case kept && (until.IsZero() || time.Now().Before(until)):
		return "", nil
	case c.State != container.StatePaused && !g.opts.NoGrace:
		return "", nil // its guest counts the grace period
	}
	if busy, err := inUse(ctx, g.eng, c.ID); busy || err != nil {
		return "", err
	}
	if c.State == container.StatePaused {
		return "its program died and left it paused", nil
	}
	return "its program died", nil
}

// ended returns why a container that has ended is garbage, or "". A kept container stays until it
// expires, because its files may be needed, unless it was terminated or nobody knows it.
func (g *collector) ended(ctx context.Context, c container.Summary, by owner.Liveness) (string, error) {
	kept, until := keptUntil(c.Labels)
	if !kept {
		return g.unused(ctx, by, time.Unix(c.Created, 0), "it has ended, and its program died")
	}
	if !until.IsZero() && time.Now().After(until) {
		return "it has ended, and has expired", nil
	}
	state, err := engineState(ctx, g.eng, c.ID)
	switch {
	case err != nil:
		return "", err
	case state.Status == primitives.StatusTerminated, state.Status == primitives.StatusExited && state.Exit.Code == 0:
		return "it was terminated", nil
	case state.Status == primitives.StatusExited && state.Exit.Code == guest.ExitUnmet:
		return "its program died before it knew it", nil
	}
	return "", nil
}

// abandonedAfter is the age from which certainly no program, on any machine, is still making
// something.
const abandonedAfter = time.Hour

// unused returns why something that only its owner can use is garbage: the owner has died or, if
// the owner is unknown, it is older than abandonedAfter. It returns "" for what is not garbage.
func (g *collector) unused(ctx context.Context, by owner.Liveness, created time.Time, why string) (string, error) {
	switch by {
	case owner.Alive:
		return "", nil
	case owner.Dead:
		return why, nil
	}
	if g.clock.IsZero() {
		info, err := g.eng.Info(ctx)
		if err == nil {
			g.clock, err = time.Parse(time.RFC3339Nano, info.SystemTime)
		}
		if err != nil {
			return "", err
		}
	}
	if g.clock.Sub(created) < abandonedAfter {
		return "", nil
	}
	return "unused for an hour", nil
}

// inUse reports whether programs other than the one that made it are attached to a running
// container: each has a process of its own in the container.
func inUse(ctx context.Context, eng *client.Client, id string) (bool, error) {
	found, err := eng.ContainerInspect(ctx, id)
	if cerrdefs.IsNotFound(err) {
		return true, nil // it was removed meanwhile
	}
	if err != nil {
		return false, err
	}
	for _, exec := range found.ExecIDs {
		process, err := eng.ContainerExecInspect(ctx, exec)
		switch {
		case cerrdefs.IsNotFound(err):
		case err != nil:
			return false, err
		case process.Running:
			return true, nil
		}
	}
	return false, nil
}

// volumes removes the volumes whose containers no longer exist.
func (g *collector) volumes(ctx context.Context) {
	found, err := g.eng.VolumeList(ctx, volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", labelSandbox), filters.Arg("dangling", "true")),
	})
	if err != nil {
		g.errs = append(g.errs, err)
		return
	}
	for _, v := range found.Volumes {
		created, _ := time.Parse(time.RFC3339, v.CreatedAt) // zero if unknown
		why, err := g.unused(ctx, findOwner(v.Labels), created, "its container is gone, and its program died")
		if err != nil {
			g.errs = append(g.errs, err)
		}
		if why != "" && ctx.Err() == nil {
			g.take(primitives.Garbage{Kind: "volume", ID: v.Name, Why: why, Created: created.UTC()}, func() error {
				return g.eng.VolumeRemove(ctx, v.Name, false)
			})
		}
	}
}

// images removes the images of forks whose programs died before they removed them. Snapshots and
// built images stay.
func (g *collector) images(ctx context.Context) {
	found, err := g.eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelFork))})
	if err != nil {
		g.errs = append(g.errs, err)
		return
	}
	for _, i := range found {
		if !isFork(i.Labels) || hasName(i) {
			continue
		}
		created := time.Unix(i.Created, 0).UTC()
		why, err := g.unused(ctx, findOwner(i.Labels), created, "no fork is left that uses it")
		if err != nil {
			g.errs = append(g.errs, err)
		}
		if why != "" && ctx.Err() == nil {
			g.image(ctx, i, primitives.Garbage{Kind: "image", ID: i.ID, Why: why, Created: created})
		}
	}
}

// image removes an image unless a container uses it. The engine would refuse that, too, but with
// primitives.GCOptions.DryRun the engine is not asked.
func (g *collector) image(ctx context.Context, i image.Summary, found primitives.Garbage) {
	using, err := g.eng.ContainerList(ctx, container.ListOptions{All: true, Limit: 1, Filters: filters.NewArgs(filters.Arg("ancestor", i.ID))})
	if err != nil {
		g.errs = append(g.errs, err)
	}
	if err != nil || len(using) > 0 {
		return
	}
	g.take(found, func() error {
		if err := images.RemoveUnused(ctx, g.eng, i.ID); err != nil {
			return err
		}
		return dropForks(ctx, g.eng, i.ParentID)
	})
}

func hasName(i image.Summary) bool {
	return slices.ContainsFunc(i.RepoTags, func(tag string) bool { return tag != "<none>:<none>" }) ||
		slices.ContainsFunc(i.RepoDigests, func(digest string) bool { return digest != "<none>@<none>" })
}

// sweepInterval is the time between two collections of an engine by a program, so that
// a program with hundreds of sandboxes does not inspect all of them for each new one.
// After a collection that was cancelled the next Create runs one at once.
const sweepInterval = time.Minute

// sweeps holds when this program last began to collect an engine's garbage, by host.
// All sandboxes of the process share it.
var sweeps = struct {
	mu    sync.Mutex
	began map[string]time.Time
}{began: map[string]time.Time{}}

// sweep is a collection in the background of Create.
type sweep struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startSweep starts a collection, unless this program began one in the last sweepInterval:
// then it returns nil. It logs errors.
func startSweep(ctx context.Context, eng *client.Client, log hclog.Logger) *sweep {
	host := eng.DaemonHost()
	if !due(host) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &sweep{cancel, make(chan struct{})}
	go func() {
		defer close(s.done)
		g := &collector{eng: eng, inNew: true, log: log}
		_, err := g.collect(ctx)
		if ctx.Err() != nil {
			forgetSweep(host)
			return
		}
		if err != nil && log != nil {
			log.Warn("orphans cannot be removed", "type", backend, "error", err)
		}
	}()
	return s
}

// due reports whether a collection of the engine is due, and records that it begins now.
func due(host string) bool {
	sweeps.mu.Lock()
	defer sweeps.mu.Unlock()
	if began, ok := sweeps.began[host]; ok && time.Since(began) < sweepInterval {
		return false
	}
	sweeps.began[host] = time.Now()
	return true
}

// forgetSweep makes the next Create start a collection.
func forgetSweep(host string) {
	sweeps.mu.Lock()
	defer sweeps.mu.Unlock()
	delete(sweeps.began, host)
}

// stop cancels the collection and waits until the removal in progress has ended.
func (s *sweep) stop() {
	if s != nil {
		s.cancel()
		<-s.done
	}
}
