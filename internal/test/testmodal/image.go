package testmodal

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// image is a root file system: layers on top of files of this machine.
type image struct {
	id      string
	layers  []string // directories with parts, uppermost first
	partial bool     // the content of a directory, not a root file system
	env     map[string]string
	workdir string

	built chan struct{} // closed when the build is complete, even if it failed
	log   *spool
	err   error // after built
}

// images are the images of a server: by ID, by recipe, and by name.
type images struct {
	dir string

	mu     sync.Mutex
	byID   map[string]*image
	recipe map[string]*image
	named  map[string]string // ids
	extra  map[string]bool   // additional repositories for FROM
}

func newImages(dir string) *images {
	return &images{dir: dir, byID: map[string]*image{}, recipe: map[string]*image{}, named: map[string]string{}, extra: map[string]bool{}}
}

// registry has the repositories that FROM finds. The values are programs that their images have
// under other names than this machine.
var registry = map[string]map[string]string{
	"alpine":         {"usr/bin/sh": "/usr/bin/busybox", "usr/bin/ash": "/usr/bin/busybox"},
	"busybox":        {"usr/bin/sh": "/usr/bin/busybox", "usr/bin/ash": "/usr/bin/busybox"},
	"buildpack-deps": nil,
	"debian":         nil,
	"golang":         nil,
	"node":           nil,
	"python":         {"usr/local/bin/python": "/usr/bin/python3"},
	"ubuntu":         nil,
}

// AddImage adds a repository for FROM, whose image is like Debian.
func (s *Server) AddImage(repository string) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	s.images.extra[repository] = true
}

// get returns an image. It waits until the image is built.
func (m *images) get(id string) (*image, error) {
	m.mu.Lock()
	img := m.byID[id]
	m.mu.Unlock()
	if img == nil {
		return nil, status.Errorf(codes.NotFound, "Image '%s' not found", id)
	}
	<-img.built
	if img.err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "Image '%s' failed to build", id)
	}
	return img, nil
}

// add registers an image that is complete.
func (m *images) add(img *image) *image {
	img.id, img.built = newID("im"), make(chan struct{})
	close(img.built)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byID[img.id] = img
	return img
}

// newLayer creates a directory for a layer.
func (m *images) newLayer() (string, error) {
	dir, err := os.MkdirTemp(m.dir, "layer-")
	for _, part := range parts {
		if err == nil {
			err = os.Mkdir(upper(dir, part), 0o755)
		}
	}
	return dir, err
}

// pull returns the image of a tag, as a registry would.
func (m *images) pull(tag string) (*image, error) {
	repository := strings.TrimPrefix(strings.TrimPrefix(tag, "docker.io/"), "library/")
	repository, _, _ = strings.Cut(repository, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	links, known := registry[repository]
	m.mu.Lock()
	known = known || m.extra[repository]
	m.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("failed to pull %q: pull access denied, repository does not exist or may require authorization", tag)
	}
	img := &image{env: map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}}
	if len(links) == 0 || !isolated() {
		return img, nil
	}
	layer, err := m.newLayer()
	if err != nil {
		return nil, err
	}
	img.layers = []string{layer}
	for name, target := range links {
		full := filepath.Join(layer, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink(target, full); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// recipeKey returns a digest of everything from which an image is built.
func recipeKey(lines []string, bases map[string]string, env map[string]string) string {
	h := sha256.New()
	for _, part := range []map[string]string{bases, env} {
		for _, name := range slices.Sorted(maps.Keys(part)) {
			_, _ = fmt.Fprintf(h, "%q=%q\n", name, part[name])
		}
		_, _ = fmt.Fprintln(h)
	}
	for _, line := range lines {
		_, _ = fmt.Fprintf(h, "%q\n", line)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
