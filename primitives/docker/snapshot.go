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

// A snapshot is an image that was committed from a container, and so is what forks
// are made of. Labels tell New to take over the session folder in it.
const (
	labelSnapshot = labelPrefix + "snapshot" // the name that Snapshot gave the image
	labelFork     = labelPrefix + "fork"     // of an image that Fork made, and so of its containers: what was forked
	labelFolder   = labelPrefix + "folder"   // the session folder in the image
	labelArch     = labelPrefix + "arch"     // of a container: the architecture of the image's programs
	labelConfig   = labelPrefix + "config"   // of a container: the configuration as JSON, to make others like it

	snapshotRepository = "agentenv-snapshot"
)

// Snapshot commits the container to an image, frozen meanwhile so that its files fit together, and returns the image's
// name. Create with that as Spec.Image makes a sandbox with these files and the
// same Paths; all its other settings are those of its own. See [Provider.Snapshots]
// and [Provider.RemoveSnapshot]. The files of the session, which are in the image, hold
// Spec.Env.
//
// What is in volumes and mounted folders is not in an image: a sandbox with
// ReadOnly or a Workspace is errors.ErrUnsupported, and so is one of an image that
// has a VOLUME, unless Mounts puts something else there.
func (d *driver) Snapshot(ctx context.Context) (string, error) {
	name := snapshotRepository + ":" + newID()
	if _, err := d.commit(ctx, name, map[string]string{labelSnapshot: name}); err != nil {
		return "", err
	}
	return name, nil
}

// copyable says why the sandbox's files cannot be put into an image, or nil.
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

// imageVolumes are the paths where the engine gives a container of the image volumes
// of its own: where nothing else is mounted.
func (c config) imageVolumes(img image.InspectResponse) []string {
	if img.Config == nil {
		return nil
	}
	var paths []string
	for at := range img.Config.Volumes {
		at = path.Clean(at)
		if at != c.workspaceTarget() && !slices.ContainsFunc(c.Mounts, func(m Mount) bool { return path.Clean(m.Target) == at }) {
			paths = append(paths, at)
		}
	}
	slices.Sort(paths)
	return paths
}

// mountedVolumes are those that an existing container was given.
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

// commit makes an image of the container that a sandbox continues with, with a name
// unless that is empty, and returns its ID.
func (d *driver) commit(ctx context.Context, name string, labels map[string]string) (string, error) {
	if err := d.copyable(); err != nil {
		return "", err
	}
	labels = d.imageLabels(labels)
	labels[labelFolder] = path.Base(d.sandbox.Paths().Session)
	return d.commitAs(ctx, name, &container.Config{
		Entrypoint: []string{guestProgram}, Cmd: []string{"guest", "--root", guestRoot},
		Labels: labels,
		Env:    packEnv(make([]string, len(d.cfg.Env))), // takes them back
	})
}

// commitAs makes an image of the container with this configuration. What is left out of
// it is taken from the container, its labels one by one.
func (d *driver) commitAs(ctx context.Context, name string, config *container.Config) (string, error) {
	// The engine does not stop when it is no longer listened to: so that nothing is
	// left behind, its answer is waited for.
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

// imageLabels take back what the container's labels say that is not true of an
// image of it.
func (d *driver) imageLabels(more map[string]string) map[string]string {
	labels := ownerLabels(config{Spec: primitives.Spec{Session: d.cfg.Session}})
	for _, other := range []string{labelSandbox, labelConfig, labelMounted, labelSnapshot, labelFork, labelImage, labelImageBase, labelLink} {
		labels[other] = ""
	}
	maps.Copy(labels, more)
	return labels
}

// SnapshotInfo describes what Snapshot has kept.
type SnapshotInfo struct {
	ID      string    `json:"id"` // the image's name
	Created time.Time `json:"created"`
	Size    int64     `json:"size"` // bytes of the image, what it shares with others included
	Session string    `json:"session,omitempty"`
}

// Snapshots returns the snapshots of the engine, of all owners, oldest first.
func (p Provider) Snapshots(ctx context.Context) ([]SnapshotInfo, error) {
	var list []SnapshotInfo
	err := p.ask("list", func(eng *client.Client) error {
		found, err := eng.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSnapshot))})
		for _, i := range found {
			// Images that were built on one have its labels, too.
			if id := i.Labels[labelSnapshot]; id != "" && slices.Contains(i.RepoTags, id) {
				list = append(list, SnapshotInfo{ID: id, Created: time.Unix(i.Created, 0).UTC(), Size: i.Size, Session: i.Labels[labelSession]})
			}
		}
		return err
	})
	slices.SortFunc(list, func(a, b SnapshotInfo) int { return a.Created.Compare(b.Created) })
	return list, err
}

// RemoveSnapshot removes a snapshot. One that does not
// exist is fs.ErrNotExist, one whose sandboxes still live is fs.ErrExist.
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

// isFork reports whether Fork made an image with these labels, not a user from a
// container of ours.
func isFork(labels map[string]string) bool {
	return labels[labelFork] != "" && labels[labelSandbox] == "" && labels[labelPID] != ""
}

// dropForks removes an image that Fork made and those that it was made of, as far as
// nothing else uses them.
func dropForks(ctx context.Context, eng *client.Client, id string) error {
	return images.RemoveChain(ctx, eng, id, isFork)
}

// describeConfig writes down what a container was made with.
func describeConfig(cfg config) string {
	cfg.Runner, cfg.Name, cfg.Host = "", "", ""
	b, err := json.Marshal(cfg)
	if err != nil {
		return "" // a configuration without an image is none
	}
	return string(b)
}

// configOf reads what describeConfig wrote. What cannot be read is that of a
// sandbox that cannot be copied.
func configOf(labels map[string]string) config {
	var cfg config
	if err := json.Unmarshal([]byte(labels[labelConfig]), &cfg); err != nil {
		return config{Provider: Provider{ReadOnly: true}}
	}
	return cfg
}

// frozen is the image that a container was committed to, for copies. They have the same
// Paths. Ports with a number of their own on the engine's machine get free ones. Mounts
// are shared, as they are by all sandboxes that have them. The image is removed with the
// last copy.
type frozen struct {
	*driver
	image image.InspectResponse
}

// Freeze implements guest.Copier. For what cannot be copied see Snapshot.
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
		return nil, exchanged(err)
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
		cfg.sharedRunner, program = "", func(context.Context) (*runnerFile, error) { return openRunnerFile(f.cfg.Runner) }
	}
	cfg.Logger = logOf(cfg, cfg.Name)
	c, err := launch(ctx, eng, cfg.Name, cfg, img, put)
	// What could be mounted when this sandbox was made may be gone.
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

// dropForkImage is for a sandbox that has ended.
func (d *driver) dropForkImage(ctx context.Context) error {
	if d.forkedFrom == "" {
		return nil
	}
	return dropForks(ctx, d.eng, d.forkedFrom)
}
