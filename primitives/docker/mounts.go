package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives/docker/internal/hostfile"
)

// Mount is a folder or file of the engine's machine in the container.
type Mount struct {
	Source string `json:"source"` // absolute path on the engine's machine; must exist
	Target string `json:"target"` // absolute path in the container
	// ReadOnly mounts Source without the file systems that are mounted below it: not all
	// engines can make those read-only.
	ReadOnly bool `json:"read_only,omitempty"`
}

// forbiddenSources returns paths that would give a container control of the machine or of
// other containers: the kernel's file systems, and the sockets and data of engines.
func forbiddenSources() []string {
	return []string{
		"/proc", "/sys", "/dev",
		"/run/docker.sock", "/var/run/docker.sock", "/run/docker", "/var/run/docker", "/var/lib/docker",
		"/run/containerd", "/var/run/containerd", "/var/lib/containerd",
		"/run/podman", "/var/run/podman", "/run/crio", "/var/run/crio", "/var/lib/containers",
		"/run/buildkit", "/var/run/buildkit", "/var/lib/kubelet",
	}
}

// sharedMemory is the part of /dev that is an ordinary folder.
const sharedMemory = "/dev/shm"

// checkTargets refuses mounts with invalid paths.
func (c config) checkTargets() error {
	if err := c.checkWorkspacePath(); err != nil {
		return err
	}
	at := c.workspaceTarget()
	taken := []string{guestDir, at}
	for i, m := range c.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		target := path.Clean(m.Target)
		switch {
		case !path.IsAbs(m.Source):
			return c.invalid(field+".source", fmt.Sprintf("%q is not absolute; give an absolute path", m.Source))
		case !path.IsAbs(m.Target) || target == "/":
			return c.invalid(field+".target", fmt.Sprintf("%q cannot be mounted on; give an absolute path other than /", m.Target))
		case strings.ContainsRune(m.Source+m.Target, 0):
			return c.invalid(field, "it contains a NUL byte")
		case systemFolder(target):
			return c.invalid(field+".target", "/proc, /sys and /dev are the container's own; choose another path")
		case c.Workspace == "" && (hostfile.Within(target, at) || hostfile.Within(at, target)):
			// What a new sandbox restores replaces all files of the workspace.
			return c.invalid(field+".target", at+" is taken by the workspace; choose another path, set workspace_path, or name the folder as workspace")
		}
		for _, t := range taken {
			if hostfile.Within(target, t) && (t == guestDir || target == t) || hostfile.Within(t, target) {
				return c.invalid(field+".target", t+" is taken; choose another path")
			}
		}
		taken = append(taken, target)
	}
	return nil
}

// changesFolders reports whether a folder of the engine's machine is mounted writable.
func (c config) changesFolders() bool {
	return c.Workspace != "" || slices.ContainsFunc(c.Mounts, func(m Mount) bool { return !m.ReadOnly })
}

// systemFolder reports whether a clean path belongs to the container itself.
func systemFolder(target string) bool {
	return hostfile.Within(target, "/proc") || hostfile.Within(target, "/sys") || hostfile.Within(target, "/dev")
}

// mountGuard checks what may be mounted.
type mountGuard struct {
	onThisMachine bool
	forbidden     []string
	// places are the forbidden files and their parent folders as found on this machine, so that
	// other names of them are refused, too.
	places []place
}

type place struct {
	info fs.FileInfo
	why  string // the forbidden path
}

func newMountGuard(socket string, onThisMachine bool) *mountGuard {
	g := &mountGuard{onThisMachine: onThisMachine, forbidden: forbiddenSources()}
	if !onThisMachine {
		return g
	}
	g.forbidden = append(g.forbidden, path.Clean(socket))
	seen := map[string]bool{}
	for _, name := range g.forbidden {
		resolved, err := filepath.EvalSymlinks(name)
		for err == nil && !seen[resolved] {
			seen[resolved] = true
			if info, err := os.Stat(resolved); err == nil {
				g.places = append(g.places, place{info, name})
			}
			resolved = filepath.Dir(resolved)
		}
	}
	return g
}

// open opens a mount's source and checks the opened file, not its name. With an engine
// on another machine it checks the name.
func (g *mountGuard) open(source string) (hostfile.File, error) {
	name := path.Clean(source)
	if err := g.judge(name); err != nil || !g.onThisMachine {
		return hostfile.File{Name: name}, err
	}
	o, err := hostfile.Open(name)
	if err != nil {
		return hostfile.File{}, err
	}
	if err := g.judgeOpened(o); err != nil {
		return hostfile.File{}, errors.Join(err, o.Close())
	}
	return o, nil
}

func (g *mountGuard) judgeOpened(o hostfile.File) error {
	if err := g.judge(o.Name); err != nil {
		return err
	}
	for _, p := range g.places {
		if os.SameFile(p.info, o.Info) && !hostfile.Within(o.Name, sharedMemory) {
			return forbidden(p.why)
		}
	}
	return nil
}

// judge checks the name alone.
func (g *mountGuard) judge(name string) error {
	if hostfile.Within(name, sharedMemory) {
		return nil
	}
	for _, f := range g.forbidden {
		if hostfile.Within(name, f) || hostfile.Within(f, name) {
			return forbidden(f)
		}
	}
	return nil
}

func forbidden(what string) error {
	return fmt.Errorf("%w: it is or holds %s, which would give the sandbox the engine's whole machine; choose another folder", fs.ErrInvalid, what)
}
