package acpserver

import (
	"path/filepath"
	"sync"
)

// paths are the folder of the client, and the workspace of the sandbox, which may have another
// path.
type paths struct {
	folder string

	mu        sync.Mutex
	workspace string
}

// found sets the workspace of a sandbox.
func (p *paths) found(workspace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workspace = workspace
}

// editor returns the client's path for a path of the sandbox. Paths outside the workspace stay
// the same.
func (p *paths) editor(name string) string {
	p.mu.Lock()
	workspace := p.workspace
	p.mu.Unlock()
	if name == "" {
		return name
	}
	if !filepath.IsAbs(name) {
		return filepath.Join(p.folder, name)
	}
	if rel, err := filepath.Rel(workspace, name); workspace != "" && err == nil && filepath.IsLocal(rel) {
		return filepath.Join(p.folder, rel)
	}
	return name
}
