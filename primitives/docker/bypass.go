package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Over the streams of the engine large files are slow. Its archives take long to begin
// and are faster then; the guest still does everything but the copying, see
// guest.Bypass.
//
// As long as an archive is on its way the engine answers nothing else about its
// container. So there is one at a time, it does not wait for the caller, and it gives
// way to whatever else this handle wants of the engine; the file then goes on over the
// stream.

// bypassFrom is the size from which on archives are faster, in bytes.
const bypassFrom = 25 << 20

// archives are those of one container.
type archives struct {
	eng       *client.Client
	container string

	mu      sync.Mutex
	cancel  context.CancelFunc // of the one on its way; nil if there is none
	arrived chan struct{}      // closed when it has, or has ended
	held    int                // how many want none to begin
}

// bypass returns the way through the archives.
func (a *archives) bypass(cfg Config) *guest.Bypass {
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

// begin returns a context for the only archive on its way, which ends with ctx, and
// what is to be called when it has arrived.
func (a *archives) begin(ctx context.Context) (context.Context, func(), error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil || a.held > 0 {
		return nil, nil, errBusy
	}
	ctx, cancel := context.WithCancel(ctx)
	arrived := make(chan struct{})
	a.cancel, a.arrived = cancel, arrived
	return ctx, sync.OnceFunc(func() {
		cancel()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cancel = nil
		close(arrived)
	}), nil
}

var errBusy = errors.New("another archive is on its way")

// giveWay ends the archive that is on its way. Like hold it may be called without
// archives.
func (a *archives) giveWay() { a.hold()() }

// hold gives way, and none begins until the function that it returns is called.
func (a *archives) hold() (release func()) {
	if a == nil {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held++
	if a.cancel != nil {
		a.cancel()
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held--
	}
}

// settle returns when nothing is written any more, or ctx is done.
func (a *archives) settle(ctx context.Context) {
	a.mu.Lock()
	busy, arrived := a.cancel != nil, a.arrived
	a.mu.Unlock()
	if busy {
		select {
		case <-arrived:
		case <-ctx.Done():
		}
	}
}

// put has the engine unpack an archive of one file.
func (a *archives) put(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
	// The engine is root, and the guest is not trusted with that.
	if to.Dir != guestRoot || !strings.HasPrefix(to.Name, ".agentenv-") || strings.ContainsAny(to.Name, "/\x00") {
		return fmt.Errorf("%w: the guest wants %q in %q", fs.ErrPermission, to.Name, to.Dir)
	}
	ctx, end, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err = a.unpack(ctx, to, content, size); err != nil {
		// The engine gives a file to its owner when it is complete, and in this
		// folder nobody else can remove it.
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), fateTimeout)
		defer cancel()
		err = errors.Join(err, a.unpack(soon, to, strings.NewReader(""), 0))
	}
	return err
}

// unpack returns when the engine has stopped writing: when the content fails the
// archive is ended, not cut off, so that the engine answers.
func (a *archives) unpack(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
	in, err := newEntry(ctx.Err, to, content, size)
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
func (a *archives) get(ctx context.Context, file guest.Located) (io.ReadCloser, error) {
	ctx, end, err := a.begin(ctx)
	if err != nil {
		return nil, err
	}
	f, err := a.pack(ctx, file)
	if err != nil {
		end()
		return nil, err
	}
	f.start(end)
	return f, nil
}

func (a *archives) pack(ctx context.Context, file guest.Located) (*packedFile, error) {
	body, stat, err := a.eng.CopyFromContainer(ctx, a.container, file.Path)
	if err != nil {
		return nil, err
	}
	// The archive itself tells the time in seconds only.
	if !stat.Mode.IsRegular() || stat.Size != file.Size || !stat.Mtime.Equal(file.ModTime) {
		return nil, errors.Join(errOtherFile, body.Close())
	}
	f := &packedFile{body: body, in: tar.NewReader(body), pace: startPace()}
	h, err := f.in.Next()
	if err == nil && (h.Typeflag != tar.TypeReg || h.Size != file.Size) {
		err = errOtherFile
	}
	if err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return f, nil
}

var errOtherFile = errors.New("the engine sees another file than the guest")
