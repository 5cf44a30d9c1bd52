package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/images"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// A snapshot is an image that was committed from a container. Forks are made of such an image, too.
// Its labels tell Create to adopt the session folder in it.
const (
	labelSnapshot = labelPrefix + "snapshot" // the name that Snapshot gave the image
	labelFork     = labelPrefix + "fork"     // of a fork's image and containers: the forked sandbox
	labelFolder   = labelPrefix + "folder"   // the session folder in the image
	labelArch     = labelPrefix + "arch"     // of a container: the architecture of the image's programs
	labelConfig   = labelPrefix + "config"   // of a container: its configuration as JSON, for copies

	snapshotRepository = "agentenv-snapshot"
)

// Snapshot commits the container to an image and returns the image's name. It freezes the container
// meanwhile, so that the files are consistent. Create with that name as Spec.Image makes a sandbox
// with these files and the same Paths; all other settings are those of the new sandbox. See
// [Provider.Snapshots] and [Provider.RemoveSnapshot]. The image holds the files of the session,
// which contain Spec.Env.
//
// An image does not hold volumes and mounted folders. So a sandbox with ReadOnly or a Workspace is
// errors.ErrUnsupported, and so is a sandbox of an image that has a VOLUME, unless Mounts puts
// something else there.
func (d *driver) Snapshot(ctx context.Context) (string, error) {
	name := snapshotRepository + ":" + newID()
	if _, err := d.commit(ctx, name, map[string]string{labelSnapshot: name}); err != nil {
		return "", err
	}
	return name, nil
}

// copyable returns nil if the sandbox's files can be put into an image, else why they cannot.
func (d *driver) copyable() error {
	switch {
	case d.cfg.ReadOnly:
		return fmt.Errorf("%w: the files of a read_only sandbox are in a volume, which an image does not hold; leave out read_only", errors.ErrUnsupported)
	case d.cfg.Workspace != "":
		return fmt.Errorf("%w: the workspace is a folder of the machine, which an image does not hold; place the files inside instead", errors.ErrUnsupported)
	case len(d.volumes) > 0:
		return fmt.Errorf("%w: the copy would lack the files of the volume %s; use an image without that VOLUME, or mount a folder of the machine there", errors.ErrUnsupported, strings.Join(d.volumes, " "))
	}
	return nil
}

// imageVolumes returns the paths at which the engine gives a container of the image volumes of its
// own, because nothing else is mounted there.
func (c config) imageVolumes(img image.InspectResponse) []string {
	if img.Config == nil {
		return nil
	}
	var paths []string
	for at := range img.Config.Volumes {
		at = path.Clean(at)
		inPlace := c.Workspace != "" && at == c.workspaceTarget()
		if !inPlace && !slices.ContainsFunc(c.Mounts, func(m Mount) bool { return path.Clean(m.Target) == at }) {
			paths = append(paths, at)
		}
	}
	slices.Sort(paths)
	return paths
}

// mountedVolumes returns the paths of the volumes of an existing container.
func mountedVolumes(mounts []container.MountPoint) []string {
	var paths []string
	for _, m := range mounts {
		if m.Type == mount.TypeVolume {
			paths = append(paths, m.Destination)
		}
	}
	slices.Sort(paths)
	return paths
}

// commit makes an image of the container from which a sandbox can continue, and returns its ID. If
// name is empty the image gets none.
func (d *driver) commit(ctx context.Context, name string, labels map[string]string) (string, error) {
	if err := d.copyable(); err != nil {
		return "", err
	}
	labels = d.imageLabels(labels)
	labels[labelFolder] = path.Base(d.sandbox.Paths().Session)
	return d.commitAs(ctx, name, &container.Config{
		Entrypoint: []string{guestProgram}, Cmd: []string{"guest", "--root", guestRoot},
		Labels: labels,
		Env:    packEnv(make([]string, len(d.cfg.Env))), // overwrites their values
	})
}

// commitAs makes an image of the container with this configuration. The engine takes missing
// settings and each missing label from the container.
func (d *driver) commitAs(ctx context.Context, name string, config *container.Config) (string, error) {
	// The engine does not stop when its client disconnects. Wait for its answer, so that nothing is
	// left behind.
	patient, cancel := patience.Outlast(ctx, removeTimeout)
	defer cancel()
	made, err := d.eng.ContainerCommit(patient, d.container, container.CommitOptions{Reference: name, Pause: true, Config: config})
	if err != nil {
		return "", errors.Join(ctx.Err(), d.explain(ctx, err))
	}
	if err := ctx.Err(); err != nil {
		return "", errors.Join(err, images.Remove(ctx, d.eng, made.ID))
	}
	return made.ID, nil
}

// imageLabels returns labels for an image of the container. They clear those labels of the
// container that would be false for the image.
func (d *driver) imageLabels(more map[string]string) map[string]string {
	labels := ownerLabels(config{Spec: primitives.Spec{Session: d.cfg.Session}})
	for _, other := range []string{labelSandbox, labelConfig, labelMounted, labelSnapshot, labelFork, labelImage, labelImageBase, labelLink} {
		labels[other] = ""
	}
	maps.Copy(labels, more)
	return labels
}

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	ID      string    `json:"id"` // the image's name
	Created time.Time `json:"created"`
	Size    int64     `json:"size"` // bytes of the image, including shared layers
	Session string    `json:"session,omitempty"`
}

// Snapshots returns the snapshots of the engine, of all owners, oldest first.
func (p Provider) Snapshots(ctx context.Context) ([]SnapshotInfo, error) {
	var list []SnapshotInfo
	err := p.ask("list", func(eng *client.Client) error {
		found, err := eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSnapshot))})
		for _, i := range found {
			// Images that were built on a snapshot have its labels, too.
			if id := i.Labels[labelSnapshot]; id != "" && slices.Contains(i.RepoTags, id) {
				list = append(list, SnapshotInfo{ID: id, Created: time.Unix(i.Created, 0).UTC(), Size: i.Size, Session: i.Labels[labelSession]})
			}
		}
		return err
	})
	slices.SortFunc(list, func(a, b SnapshotInfo) int { return a.Created.Compare(b.Created) })
	return list, err
}

// RemoveSnapshot removes a snapshot. A missing snapshot is fs.ErrNotExist. A snapshot whose
// sandboxes still live is fs.ErrExist.
func (p Provider) RemoveSnapshot(ctx context.Context, id string) error {
	return p.askAbout("remove", id, func(eng *client.Client) error {
		img, err := eng.ImageInspect(ctx, id)
		if err != nil {
			return err
		}
		if img.Config == nil || img.Config.Labels[labelSnapshot] != id || !strings.HasPrefix(id, snapshotRepository+":") {
			return fmt.Errorf("%w: the image was not made as a snapshot", fs.ErrNotExist)
		}
		_, err = eng.ImageRemove(ctx, id, image.RemoveOptions{})
		if cerrdefs.IsConflict(err) {
			return fmt.Errorf("end the sandboxes and remove the snapshots that were made of it first: %w", err)
		}
		if err != nil {
			return err
		}
		return dropForks(ctx, eng, img.Parent) //nolint:staticcheck // engines that have no parents say none
	})
}

// isFork reports whether Fork made the image with these labels, rather than a user from a sandbox's
// container.
func isFork(labels map[string]string) bool {
	return labels[labelFork] != "" && labels[labelSandbox] == "" && labels[labelPID] != ""
}

// dropForks removes an image that Fork made and the fork images that it was made of, unless
// something else uses them.
func dropForks(ctx context.Context, eng *client.Client, id string) error {
	return images.RemoveChain(ctx, eng, id, isFork)
}

// describeConfig returns the configuration of a container as JSON.
func describeConfig(cfg config) string {
	cfg.Runner, cfg.Name, cfg.Host = "", "", ""
	b, err := json.Marshal(cfg)
	if err != nil {
		return "" // configOf then returns one that cannot be copied
	}
	return string(b)
}

// configOf parses what describeConfig returned. If it cannot, it returns the configuration of a
// sandbox that cannot be copied.
func configOf(labels map[string]string) config {
	var cfg config
	if err := json.Unmarshal([]byte(labels[labelConfig]), &cfg); err != nil {
		return config{Provider: Provider{ReadOnly: true}}
	}
	return cfg
}

// frozen is an image of a container, for copies. Copies have the same Paths. Published ports with a
// fixed number on the engine's machine get free ones. Copies share Mounts, like all sandboxes that
// have them. The image is removed with the last copy.
type frozen struct {
	*driver
	image image.InspectResponse
}

// Freeze implements guest.Copier. Snapshot says what cannot be copied.
func (d *driver) Freeze(ctx context.Context) (guest.Frozen, error) {
	id, err := d.commit(ctx, "", map[string]string{labelFork: d.id})
	if err != nil {
		return nil, err
	}
	img, err := d.eng.ImageInspect(ctx, id)
	if err == nil {
		err = checkLinks(ctx, d.eng, d.cfg, img)
	}
	if err != nil {
		return nil, errors.Join(d.explain(ctx, err), dropForks(ctx, d.eng, id))
	}
	return &frozen{d, img}, nil
}

// Drop removes the image.
func (f *frozen) Drop(ctx context.Context) error { return dropForks(ctx, f.eng, f.image.ID) }

// Copy makes a container with the settings of the first one. The guest is in the image.
func (f *frozen) Copy(ctx context.Context) (_ *guest.Sandbox, err error) {
	img, cfg := f.image, f.cfg
	cfg.Image, cfg.Name = img.ID, namePrefix+newID()
	cfg.Publish = slices.Clone(cfg.Publish)
	for i := range cfg.Publish {
		cfg.Publish[i].Host = 0
	}
	eng, err := engine.ShareAgain(f.eng, cfg.Host)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, engine.Release(eng))
		}
	}()
	if cfg, err = cfg.openFolders(eng.DaemonHost()); err != nil {
		return nil, wrapFolderChanged(err)
	}
	defer cfg.folders.close()
	if err := cfg.folders.sameAs(f.cfg.folders); err != nil {
		return nil, err
	}
	var program runnerOpener // nil: it is in the image, or mounted
	put := func(id string) error {
		if program == nil {
			return nil
		}
		return installRunner(ctx, eng, id, program)
	}
	if f.program != guestProgram { // the guest in the image is of another release
		cfg.sharedRunner, program = "", func(context.Context) (*runnerFile, error) { return openRunnerFile(f.cfg.Runner) } // its digest is cfg.RunnerSum
	}
	cfg.Logger = logOf(cfg, cfg.Name)
	c, err := launch(ctx, eng, cfg.Name, cfg, img, put)
	// A file that could be mounted when this sandbox was made may be gone.
	if cfg.sharedRunner != "" && mayBeMounts(err) {
		cfg.sharedRunner, program = "", f.openRunner
		c, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if !cfg.NoSocket && mayBeMounts(err) {
		cfg.NoSocket = true
		c, err = launch(ctx, eng, cfg.Name, cfg, img, put)
	}
	if err != nil {
		return nil, engine.Explain(eng, err)
	}
	c.forkedFrom = img.ID
	return c.handOver(), nil
}

// openRunner opens the runner inside the sandbox: a mounted file stays readable there
// after it was removed on this machine. If the guest does not answer, for example because
// the container is paused, openRunner opens the file of this machine.
func (d *driver) openRunner(ctx context.Context) (*runnerFile, error) {
	info, err := d.sandbox.Stat(ctx, guestProgram)
	if err == nil {
		var r io.ReadCloser
		if r, err = d.sandbox.Open(ctx, guestProgram); err == nil {
			return &runnerFile{r, info.Size}, nil
		}
	}
	f, ferr := openRunnerFile(d.cfg.Runner)
	if ferr != nil {
		return nil, fmt.Errorf("resume the sandbox, or put its runner back to where it was: %w", errors.Join(ferr, err))
	}
	return f, nil
}

// dropForkImage removes the image of a fork that has ended, unless other sandboxes use it.
func (d *driver) dropForkImage(ctx context.Context) error {
	if d.forkedFrom == "" {
		return nil
	}
	return dropForks(ctx, d.eng, d.forkedFrom)
}
