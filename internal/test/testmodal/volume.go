package testmodal

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// volume keeps files beyond sandboxes. A sandbox has a copy of its own, and what it
// writes is committed when it asks for it, and at its end.
type volume struct {
	id, dir string

	mu sync.Mutex // held while copying
}

// mountedVolume is a sandbox's copy.
type mountedVolume struct {
	*volume
	source   string // in the volume's directory
	copy     string
	readOnly bool
	known    map[string]bool // files when last in step
}

// mountVolumes makes the sandbox's copies.
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

// commitVolumes commits what the sandbox has written.
func (sb *sandbox) commitVolumes() {
	for _, m := range sb.volumes {
		if err := m.commit(); err != nil {
			sb.server.report("commit a volume", err)
		}
	}
}

// commit puts what is new in the copy into the volume, and removes there what the
// copy had and has no more.
func (m *mountedVolume) commit() error {
	if m.readOnly {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step(m.copy, m.source)
}

// reload puts what is new in the volume into the copy.
func (m *mountedVolume) reload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step(m.source, m.copy)
}

// step copies what is newer, and removes what was known and is no more.
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

// names are the paths of all that is in a directory.
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
