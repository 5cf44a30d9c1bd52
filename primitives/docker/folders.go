package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/docker/docker/api/types/mount"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/hostfile"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// The engine gets the names of the folders to mount and resolves them when it starts the
// container. A program that may rename entries in a folder above can exchange what the
// engine finds. So New opens and judges each folder first, and uses a container only after
// its guest has found the same files at their targets. The guest is alone then: no command
// has run yet.

// ErrFolderChanged is the error of New, Attach and Fork when a mounted folder is not the one
// that the configuration named: another program has exchanged it.
var ErrFolderChanged = errors.New("a mounted folder was exchanged for another")

// labelMounted says of a container what its guest must find: JSON of mountedFile.
const labelMounted = labelPrefix + "mounted"

// hostFolders are what a container gets of the engine's machine.
type hostFolders struct {
	list []hostFolder
}

// hostFolder is one of them. Its source is open until the container is proven.
type hostFolder struct {
	mountedFile
	source    hostfile.File
	readOnly  bool
	protected bool // it is there to protect what is below another one, see protect
}

// mountedFile is what must be at a target. Without an inode nothing is known of it.
type mountedFile struct {
	Field  string `json:"field"` // of the configuration
	Target string `json:"target"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

// openFolders opens what the configuration mounts, if the engine is on this machine, and
// refuses what must not be mounted. The configuration that it returns has the real paths.
// The caller must close the folders.
func (c config) openFolders(host string) (_ config, err error) {
	socket, onThisMachine := strings.CutPrefix(host, "unix://")
	guard := newMountGuard(socket, onThisMachine)
	folders := &hostFolders{}
	defer func() {
		if err != nil {
			folders.close()
		}
	}()
	if c.Workspace != "" {
		w, err := folders.open(guard, "workspace", c.Workspace, c.workspaceTarget(), false)
		if err != nil {
			return c, err
		}
		if w.Info != nil && !w.Info.IsDir() {
			return c, fmt.Errorf("workspace: %s: %w; name a folder", c.Workspace, primitives.ErrNotDirectory)
		}
		if asked := path.Clean(c.Workspace); c.WorkspacePath != "" && path.Clean(c.WorkspacePath) == asked && w.Name != asked {
			return c, c.invalid("workspace", "symbolic links lead from "+asked+" to "+w.Name+", so that it cannot be the same as workspace_path; give the real path for both")
		}
		c.Workspace = w.Name
	}
	c.Mounts = slices.Clone(c.Mounts)
	for i, m := range c.Mounts {
		o, err := folders.open(guard, fmt.Sprintf("mounts[%d].source", i), m.Source, path.Clean(m.Target), m.ReadOnly)
		if err != nil {
			return c, err
		}
		c.Mounts[i].Source = o.Name
	}
	if err := folders.protect(c.Writable); err != nil {
		return c, err
	}
	c.folders = folders
	return c, nil
}

func (f *hostFolders) open(guard *mountGuard, field, source, target string, readOnly bool) (hostfile.File, error) {
	o, err := guard.open(source)
	if err != nil {
		return o, fmt.Errorf("%s: %w", field, err)
	}
	f.add(hostFolder{mountedFile: mountedFile{Field: field, Target: target}, source: o, readOnly: readOnly})
	return o, nil
}

func (f *hostFolders) add(h hostFolder) {
	if h.source.IsOpen() {
		h.Dev, h.Ino = h.source.Identity()
	}
	f.list = append(f.list, h)
}

// close lets go of the open files. What they were stays known.
func (f *hostFolders) close() {
	if f == nil {
		return
	}
	for i := range f.list {
		_ = f.list[i].source.Close() // it was only looked at
	}
}

// empty reports whether nothing of the machine is mounted.
func (f *hostFolders) empty() bool { return f == nil || len(f.list) == 0 }

// mounts are what the engine is asked for.
func (f *hostFolders) mounts() []mount.Mount {
	if f == nil {
		return nil
	}
	var list []mount.Mount
	for _, h := range f.list {
		m := mount.Mount{Type: mount.TypeBind, Source: h.source.Name, Target: h.Target, ReadOnly: h.readOnly}
		if h.readOnly {
			// Engines before 25 leave file systems that are mounted below it writable.
			m.BindOptions = &mount.BindOptions{NonRecursive: true}
		}
		list = append(list, m)
	}
	return list
}

// prove asks the guest of a container, in which nothing else runs yet, whether the opened
// files are at their targets. A guest on another kernel, as in a virtual machine, has other
// device and inode numbers: nothing is proven there.
func (f *hostFolders) prove(ctx context.Context, g *guest.Sandbox) error {
	if f == nil {
		return nil
	}
	known := slices.DeleteFunc(slices.Clone(f.list), func(h hostFolder) bool { return h.Ino == 0 })
	if len(known) == 0 {
		return nil
	}
	targets := make([]string, len(known))
	for i, h := range known {
		targets[i] = h.Target
	}
	found, err := g.Identify(ctx, targets)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrFolderChanged, err)
	}
	if err != nil || found.Kernel == "" || found.Kernel != owner.Self().Boot {
		return err
	}
	for i, h := range known {
		have := found.Files[i]
		switch {
		case have.Denied && h.protected:
			// Nothing in the container reaches it, then.
		case have.Denied:
			return fmt.Errorf("%w: %s: let the container's user enter the folders above %s", fs.ErrPermission, h.Field, h.Target)
		case have.Dev != h.Dev || have.Ino != h.Ino || h.readOnly && !have.ReadOnly:
			return fmt.Errorf("%w: %s: what is at %s in the container is not what was there when the sandbox was asked for; look who can rename folders above it", ErrFolderChanged, h.Field, h.Target)
		}
	}
	return nil
}

// exchanged adds ErrFolderChanged to an error of openFolders if it says that a folder, which
// could be mounted before, is not there, or is something that cannot be mounted.
func exchanged(err error) error {
	for _, of := range []error{fs.ErrNotExist, fs.ErrInvalid, primitives.ErrNotDirectory, syscall.ENOTDIR} {
		if errors.Is(err, of) {
			return fmt.Errorf("%w: %w", ErrFolderChanged, err)
		}
	}
	return err
}

// sameAs refuses folders that differ from those that a sandbox already has. The protected
// paths in them may differ.
func (f *hostFolders) sameAs(before *hostFolders) error {
	ours, theirs := f.described(), before.described()
	for i, m := range ours {
		if i >= len(theirs) || m != theirs[i] {
			return fmt.Errorf("%w: %s: the name does not mean any more what the sandbox has at %s", ErrFolderChanged, m.Field, m.Target)
		}
	}
	return nil
}

// described are those that the configuration names, without their sources.
func (f *hostFolders) described() []mountedFile {
	if f == nil {
		return nil
	}
	var list []mountedFile
	for _, h := range f.list {
		if !h.protected {
			list = append(list, h.mountedFile)
		}
	}
	return list
}

// label describes the folders to programs that attach to the container.
func (f *hostFolders) label() string {
	b, _ := json.Marshal(f.described()) // strings and numbers can be written
	return string(b)
}

// foldersOf reads what label wrote.
func foldersOf(labels map[string]string) (*hostFolders, error) {
	var list []mountedFile
	if err := json.Unmarshal([]byte(labels[labelMounted]), &list); err != nil {
		return nil, fmt.Errorf("%w: the container was made by another version: its label %s cannot be read: %w; remove it with Remove", errors.ErrUnsupported, labelMounted, err)
	}
	f := &hostFolders{}
	for _, m := range list {
		f.list = append(f.list, hostFolder{mountedFile: m})
	}
	return f, nil
}
