package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Over the streams of the engine large files are slow. Its archives take long to begin
// and are faster then; the guest still does everything but the copying, see
// guest.Bypass.

// bypassFrom is the size from which on archives are faster, in bytes.
const bypassFrom = 25 << 20

// newBypass returns the way through the engine's archives.
func newBypass(eng *client.Client, id string, cfg Config) *guest.Bypass {
	a := archives{eng, id}
	b := &guest.Bypass{MinSize: bypassFrom, Mounts: cfg.archived(), Put: a.put, Get: a.get}
	if cfg.bypassFrom > 0 {
		b.MinSize = cfg.bypassFrom
	}
	return b
}

// archived returns paths in all the file systems that archives hold: not in those
// that are only mounted in the container, such as /tmp of a read-only one.
func (c Config) archived() []string {
	paths := []string{"/", guestDir}
	if c.Workspace != "" {
		paths = append(paths, c.workspaceTarget())
	}
	for _, m := range c.Mounts {
		paths = append(paths, m.Target)
	}
	return paths
}

// archives are those of one container.
type archives struct {
	eng       *client.Client
	container string
}

// put has the engine unpack an archive of one file. When the content fails the archive
// is ended, not cut off, so that the engine answers when it has stopped writing.
func (a archives) put(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
	// The engine is root and the guest is not trusted with that.
	if to.Dir != guestRoot || to.Name == "" || strings.ContainsAny(to.Name, "/\x00") || !strings.HasPrefix(to.Name, ".") || strings.Trim(to.Name, ".") == "" {
		return fmt.Errorf("%w: the guest wants a file in %q", fs.ErrPermission, to.Dir)
	}
	in, err := newEntry(to, content, size)
	if err != nil {
		return err
	}
	patient, cancel := outlast(ctx, fateTimeout)
	defer cancel()
	err = a.eng.CopyToContainer(patient, a.container, to.Dir, in, container.CopyToContainerOptions{})
	return errors.Join(in.failure(), err)
}

// get has the engine pack a file. The engine must see the very file that the guest
// has opened.
func (a archives) get(ctx context.Context, file guest.Located) (io.ReadCloser, error) {
	body, stat, err := a.eng.CopyFromContainer(ctx, a.container, file.Path)
	if err != nil {
		return nil, err
	}
	// The archive itself tells the time in seconds only.
	if !stat.Mode.IsRegular() || stat.Size != file.Size || !stat.Mtime.Equal(file.ModTime) {
		return nil, errors.Join(errOtherFile, body.Close())
	}
	packed := tar.NewReader(body)
	h, err := packed.Next()
	if err == nil && (h.Typeflag != tar.TypeReg || h.Size != file.Size) {
		err = errOtherFile
	}
	if err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return &packedFile{packed, body}, nil
}

var errOtherFile = errors.New("the engine sees another file than the guest")

// packedFile is the content of the only file in an archive.
type packedFile struct {
	*tar.Reader
	io.Closer
}

// entry is an archive of one file.
type entry struct {
	parts []io.Reader // that are left: its header, the content, what ends it

	mu  sync.Mutex
	err error // of the content
}

// newEntry returns the archive of a file that only its owner can use.
func newEntry(to guest.Staged, content io.Reader, size int64) (*entry, error) {
	var head bytes.Buffer
	err := tar.NewWriter(&head).WriteHeader(&tar.Header{
		Name: to.Name, Typeflag: tar.TypeReg, Mode: 0o600, Size: size, Uid: to.UID, Gid: to.GID, ModTime: time.Now(),
	})
	if err != nil {
		return nil, err
	}
	const block = 512
	padding := (block - size%block) % block
	return &entry{parts: []io.Reader{&head, content, bytes.NewReader(make([]byte, padding+2*block))}}, nil
}

// Read reads the archive. If the content fails it ends there.
func (e *entry) Read(p []byte) (int, error) {
	for len(e.parts) > 0 {
		n, err := e.parts[0].Read(p)
		switch {
		case errors.Is(err, io.EOF):
			e.parts = e.parts[1:]
		case err != nil:
			e.fail(err)
			e.parts = nil
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// failure is the error of the content.
func (e *entry) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
