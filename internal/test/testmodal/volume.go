package testmodal

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// volume keeps files beyond the life of sandboxes. Each sandbox has its own copy. Its changes
// are committed when it requests that, and when it ends.
type volume struct {
	id, dir string

	mu sync.Mutex // held while copying
}

// mountedVolume is a sandbox's copy of a volume.
type mountedVolume struct {
	*volume
	source   string // in the volume's directory
	copy     string
	readOnly bool
	known    map[string]bool // files at the last commit or reload
}

// mountVolumes creates the sandbox's copies of volumes.
func (sb *sandbox) mountVolumes() ([]mount, error) {
	var mounts []mount
	for i, def := range sb.definition.GetVolumeMounts() {
		v, err := sb.server.volume(def.GetVolumeId())
		if err != nil {
			return nil, err
		}
		m := &mountedVolume{
			volume: v, source: filepath.Join(v.dir, filepath.Clean("/"+def.GetSubPath())),
			copy: filepath.Join(sb.dir, fmt.Sprintf("volume-%d", i)), readOnly: def.GetReadOnly(),
		}
		for _, dir := range []string{m.source, m.copy} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
		if err := m.reload(); err != nil {
			return nil, err
		}
		sb.volumes = append(sb.volumes, m)
		mounts = append(mounts, mount{source: m.copy, target: def.GetMountPath(), readOnly: m.readOnly})
	}
	return mounts, nil
}

// commitVolumes commits the sandbox's changes.
func (sb *sandbox) commitVolumes() {
	for _, m := range sb.volumes {
		if err := m.commit(); err != nil {
			sb.server.report("commit a volume", err)
		}
	}
}

// commit copies new and newer files of the copy into the volume, and removes from the volume
// the files that were deleted from the copy.
func (m *mountedVolume) commit() error {
	if m.readOnly {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step(m.copy, m.source)
}

// reload copies new and newer files of the volume into the copy, and removes from the copy the
// files that were deleted from the volume.
func (m *mountedVolume) reload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step(m.source, m.copy)
}

// step copies newer files, and removes files that were known and no longer exist.
func (m *mountedVolume) step(from, to string) error {
	now, err := names(from)
	if err != nil {
		return err
	}
	for name := range m.known {
		if !now[name] {
			if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	if err := copyTree(from, to); err != nil {
		return err
	}
	m.known, err = names(m.copy)
	return err
}

// names returns the paths of everything in a directory.
func names(dir string) (map[string]bool, error) {
	all := map[string]bool{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != "." {
			all[path] = true
		}
		return err
	})
	return all, err
}
