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

// image is a directory recipe: layers on top of what is taken from this machine.
type image struct {
	id      string
	layers  []string // directories with parts, the upper first
	partial bool     // only a directory's content, without a root below it
	env     map[string]string
	workdir string

	built chan struct{} // closed when it is, well or not
	log   *spool
	err   error // after built
}

// images are what a server has: by id, by what they are made from, and by name.
type images struct {
	dir string

	mu     sync.Mutex
	byID   map[string]*image
	recipe map[string]*image
	named  map[string]string // ids
	extra  map[string]bool   // repositories that FROM finds, too
}

func newImages(dir string) *images {
	return &images{dir: dir, byID: map[string]*image{}, recipe: map[string]*image{}, named: map[string]string{}, extra: map[string]bool{}}
}

// registry are the repositories that FROM finds, with the programs that theirs have
// under other names than this machine's.
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

// AddImage makes FROM find a repository besides the usual ones, which is like Debian.
func (s *Server) AddImage(repository string) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	s.images.extra[repository] = true
}

// get finds an image that is built.
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

// add keeps an image that is complete.
func (m *images) add(img *image) *image {
	img.id, img.built = newID("im"), make(chan struct{})
	close(img.built)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byID[img.id] = img
	return img
}

// newLayer makes a directory for a layer.
func (m *images) newLayer() (string, error) {
	dir, err := os.MkdirTemp(m.dir, "layer-")
	for _, part := range parts {
		if err == nil {
			err = os.Mkdir(upper(dir, part), 0o755)
		}
	}
	return dir, err
}

// pull makes the image of a tag, as a registry would.
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

// recipeKey names what an image is made from.
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
