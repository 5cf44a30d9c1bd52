package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// The engine gets the names of the folders to mount and resolves them when it starts the container.
// A program that may rename entries in a parent folder can exchange what the engine finds. So
// Create opens and checks each folder first, and uses a container only after its guest has found
// the same files at their targets. No command has run in the container by that time.

// ErrFolderChanged is the error of Create, Attach and Fork when another program has exchanged a
// mounted folder, so that it is not the one that the configuration named.
var ErrFolderChanged = errors.New("a mounted folder was exchanged for another")

// labelMounted says what the guest of a container must find: JSON of mountedFile.
const labelMounted = labelPrefix + "mounted"

// hostFolders are the folders and files of the engine's machine that a container mounts.
type hostFolders struct {
	list []hostFolder
}

// hostFolder is one of them. Its source stays open until prove has checked the container.
type hostFolder struct {
	mountedFile
	source    hostfile.File
	readOnly  bool
	protected bool // mounted to protect a path in another folder, see protect
}

// mountedFile is the file that must be at a target. Without an inode the file is unknown.
type mountedFile struct {
	Field  string `json:"field"` // the setting that names it
	Target string `json:"target"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

// openFolders opens what the configuration mounts, if the engine is on this machine, and refuses
// what must not be mounted. It returns the configuration with the real paths. The caller must close
// the folders.
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

// close closes the open files. Their identities stay known.
func (f *hostFolders) close() {
	if f == nil {
		return
	}
	for i := range f.list {
		_ = f.list[i].source.Close() // nothing was written
	}
}

// empty reports whether nothing of the machine is mounted.
func (f *hostFolders) empty() bool { return f == nil || len(f.list) == 0 }

// mounts returns the mounts for the engine.
func (f *hostFolders) mounts() []mount.Mount {
	if f == nil {
		return nil
	}
	var list []mount.Mount
	for _, h := range f.list {
		m := mount.Mount{Type: mount.TypeBind, Source: h.source.Name, Target: h.Target, ReadOnly: h.readOnly}
		if h.readOnly {
			// Engines before 25 leave file systems below a read-only mount writable.
			m.BindOptions = &mount.BindOptions{NonRecursive: true}
		}
		list = append(list, m)
	}
	return list
}

// prove checks with the guest that the opened files are at their targets. Nothing else may run in
// the container yet. A guest on another kernel, as in a virtual machine, has other device and inode
// numbers: then prove checks only that the targets exist.
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
			// Nothing in the container can reach the path.
		case have.Denied:
			return fmt.Errorf("%w: %s: let the container's user enter the folders above %s", fs.ErrPermission, h.Field, h.Target)
		case have.Dev != h.Dev || have.Ino != h.Ino || h.readOnly && !have.ReadOnly:
			return fmt.Errorf("%w: %s: what is at %s in the container is not what was there when the sandbox was asked for; look who can rename folders above it", ErrFolderChanged, h.Field, h.Target)
		}
	}
	return nil
}

// checkEntry refuses a workspace of this machine that the container's user may not enter: such as
// one with mode 0700, because root in the container cannot enter it either.
func (c config) checkEntry(ctx context.Context, g *guest.Sandbox) error {
	if c.Workspace == "" {
		return nil
	}
	found, err := g.Identify(ctx, []string{c.workspaceTarget() + "/."})
	if err != nil || !found.Files[0].Denied {
		return err
	}
	problem := "the container's user may not enter the workspace " + c.Workspace + "; give the user of that folder"
	if info, err := os.Stat(c.Workspace); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			problem += fmt.Sprintf(", as in user: \"%d:%d\"", st.Uid, st.Gid)
		}
	}
	return c.invalid("user", problem)
}

// wrapFolderChanged adds ErrFolderChanged to an error of openFolders which says that a folder is missing or
// cannot be mounted, although it could be mounted before.
func wrapFolderChanged(err error) error {
	for _, of := range []error{fs.ErrNotExist, fs.ErrInvalid, primitives.ErrNotDirectory, syscall.ENOTDIR} {
		if errors.Is(err, of) {
			return fmt.Errorf("%w: %w", ErrFolderChanged, err)
		}
	}
	return err
}

// sameAs returns an error if folders differ from those that a sandbox already has. The protected
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

// described returns the folders that the configuration names, without their sources.
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

// label returns the folders as JSON, for programs that attach to the container.
func (f *hostFolders) label() string {
	b, _ := json.Marshal(f.described()) // strings and numbers can be marshalled
	return string(b)
}

// foldersOf parses what label returned.
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
