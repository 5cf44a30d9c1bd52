package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// archived is a sandbox whose large files go through the engine's archives, over a
// proxy that sees them.
type archived struct {
	*docker.Sandbox
	cfg   docker.Config
	proxy *testdocker.Proxy

	mu         sync.Mutex
	puts, gets int
	beforeGet  func()
}

// large is what a large file has here.
const large = 1 << 20

// newArchived makes a sandbox and finds out once that archives work.
func newArchived(t *testing.T, cfg docker.Config) *archived {
	t.Helper()
	a := &archived{proxy: testdocker.NewProxy(t)}
	a.proxy.Before(func(method, request string) {
		request, _, _ = strings.Cut(request, "?")
		if path.Base(request) != "archive" {
			return
		}
		a.mu.Lock()
		f := a.beforeGet
		switch method {
		case "PUT":
			a.puts++
		case "GET":
			a.gets++
		}
		a.mu.Unlock()
		if method == "GET" && f != nil {
			f()
		}
	})
	cfg.Host, cfg.NoSocket = a.proxy.Host(), true
	docker.BypassFrom(&cfg, large)
	a.cfg, a.Sandbox = cfg, open(t, cfg)
	a.went()
	a.put(t, "first", random(large))
	return a
}

// went returns how many archives went in and out since the last call.
func (a *archived) went() (puts, gets int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	puts, gets = a.puts, a.gets
	a.puts, a.gets = 0, 0
	return puts, gets
}

func (a *archived) expect(t *testing.T, puts, gets int) {
	t.Helper()
	if p, g := a.went(); p != puts || g != gets {
		t.Errorf("%d archives went in and %d came out, want %d and %d", p, g, puts, gets)
	}
}

func (a *archived) put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := a.WriteFile(t.Context(), name, bytes.NewReader(content), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (a *archived) has(t *testing.T, name string, want []byte) {
	t.Helper()
	r, err := a.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes that are others than the %d written", name, len(got), len(want))
	}
}

// nothingLeft fails if a file is left where it was staged or was to be.
func (a *archived) nothingLeft(t *testing.T) {
	t.Helper()
	for _, dir := range []string{path.Dir(a.Paths().Session), a.Paths().Workspace, "/dev/shm"} {
		list, err := a.List(t.Context(), dir, primitives.ListOptions{Pattern: ".agentenv-*"})
		if err != nil || len(list) > 0 {
			t.Errorf("left in %s: %+v, %v", dir, list, err)
		}
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}

// during is a source that does something when half of it was read.
type during struct {
	*bytes.Reader
	once sync.Once
	do   func() error
}

func (d *during) Read(p []byte) (n int, err error) {
	if int64(d.Len()) <= d.Size()/2 {
		d.once.Do(func() { err = d.do() })
	}
	if err != nil {
		return 0, err
	}
	return d.Reader.Read(p[:min(len(p), 10_000)])
}

func TestLargeFilesGoThroughArchives(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*docker.Config){
		"root, a bound folder": func(c *docker.Config) {
			c.Mounts = []docker.Mount{{Source: t.TempDir(), Target: "/shared"}}
		},
		"user, read-only": func(c *docker.Config) { c.User, c.ReadOnly = "tester", true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testdocker.Busybox(t))
			change(&cfg)
			a := newArchived(t, cfg)
			a.expect(t, 2, 0) // one to find out
			for rule, test := range map[string]func(t *testing.T){
				"they arrive as they were":                  a.areWhole,
				"links lead to them":                        a.throughLinks,
				"their names stay inside":                   a.stayInside,
				"what fails leaves the old file":            a.failWhole,
				"a file that is replaced is read as it was": a.readOld,
				"they give way":                             a.giveWay,
				"a paused sandbox takes none":               a.whilePaused,
				"other handles do the same":                 a.fromOthers,
			} {
				t.Run(rule, func(t *testing.T) {
					a.went()
					test(t)
					a.nothingLeft(t)
				})
			}
			if cfg.ReadOnly {
				t.Run("they do not outlive it", a.terminatedInTheMiddle)
			} else {
				t.Run("what is cut off is not whole", a.cutInTheMiddle)
			}
		})
	}
}

func (a *archived) areWhole(t *testing.T) {
	want := random(3*large + 77)
	a.put(t, "big", want)
	a.expect(t, 1, 0)
	a.has(t, "big", want)
	a.expect(t, 0, 1)
	a.put(t, "small", []byte("new"))
	first, err := a.Stat(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := a.Stat(t.Context(), "big"); err != nil || info.Mode != 0o644 || info.UID != first.UID || info.GID != first.GID {
		t.Errorf("got %+v, %v, want it like %+v", info, err, first)
	}
	a.expect(t, 0, 0)

	// Only mounted in the container.
	a.put(t, "/dev/shm/big", want)
	a.expect(t, 1, 0)
	a.has(t, "/dev/shm/big", want)
	a.expect(t, 0, 0)
	if len(a.cfg.Mounts) > 0 {
		a.put(t, "/shared/big", want)
		a.has(t, "/shared/big", want)
		a.expect(t, 1, 1)
		if got, err := os.ReadFile(path.Join(a.cfg.Mounts[0].Source, "big")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the folder has another file: %d bytes, %v", len(got), err)
		}
	}
}

func (a *archived) throughLinks(t *testing.T) {
	output(t, a.Sandbox, "sh", "-c", "mkdir -p real; ln -s real dir; ln -s dir/target link")
	want := random(large)
	a.put(t, "link", want)
	a.has(t, "dir/target", want)
	a.expect(t, 1, 1)
	if info, err := a.Stat(t.Context(), "link"); err != nil || info.Target != "dir/target" {
		t.Errorf("the link became %+v, %v", info, err)
	}
}

func (a *archived) stayInside(t *testing.T) {
	output(t, a.Sandbox, "ln", "-s", "/tmp", "out")
	for name, want := range map[string]error{"../big": primitives.ErrPathEscape, "out/big": primitives.ErrPathEscape, ".": primitives.ErrIsDirectory} {
		r := bytes.NewReader(random(large))
		if err := a.WriteFile(t.Context(), name, r, primitives.WriteOptions{}); !errors.Is(err, want) || r.Len() != large {
			t.Errorf("%s: %v, and %d bytes are left", name, err, r.Len())
		}
	}
	a.expect(t, 0, 0)
}

func (a *archived) failWhole(t *testing.T) {
	old := random(10)
	a.put(t, "old", old)
	cause := errors.New("a bad sector")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, c := range []struct {
		do   func() error
		want error
	}{
		{func() error { return cause }, cause},
		{func() error { cancel(); return nil }, context.Canceled},
	} {
		r := &during{Reader: bytes.NewReader(random(4 * large)), do: c.do}
		err := a.WriteFile(ctx, "old", r, primitives.WriteOptions{})
		where, ok := errors.AsType[*primitives.Error](err)
		if !errors.Is(err, c.want) || !ok || where.Op != "write" || where.Target != "old" || where.Backend != "docker" {
			t.Errorf("got %v, want %v", err, c.want)
		}
		a.expect(t, 2, 0) // one to make the other the guest's to remove
		a.nothingLeft(t)
		a.has(t, "old", old)
	}
}

func (a *archived) readOld(t *testing.T) {
	want := random(large)
	a.put(t, "replaced", want)
	a.went()
	a.mu.Lock()
	a.beforeGet = func() {
		if got := output(t, a.Sandbox, "sh", "-c", "head -c 1048576 /dev/zero >new && mv -f new replaced && stat -c %s replaced"); got != "1048576\n" {
			t.Errorf("replaced by %q bytes", got)
		}
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.beforeGet = nil
		a.mu.Unlock()
	}()
	a.has(t, "replaced", want)
	a.expect(t, 0, 1)
}

func (a *archived) whilePaused(t *testing.T) {
	if err := a.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(random(large))
	if err := a.WriteFile(t.Context(), "paused", r, primitives.WriteOptions{}); !errors.Is(err, primitives.ErrUnavailable) || r.Len() != large {
		t.Errorf("write: %v, and %d bytes are left", err, r.Len())
	}
	if _, err := a.Open(t.Context(), "first"); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("open: %v", err)
	}
	if err := a.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.expect(t, 0, 0)
	a.has(t, "first", random(large))
	a.expect(t, 0, 1)
}

func (a *archived) fromOthers(t *testing.T) {
	s, err := docker.Attach(t.Context(), a.cfg, a.ID())
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
	a.expect(t, 0, 1)
	if err := errors.Join(r.Close(), r.Close()); err != nil { // in the middle
		t.Error(err)
	}
	want := random(large)
	if err := s.WriteFile(t.Context(), "other", bytes.NewReader(want), primitives.WriteOptions{}); err != nil {
		t.Error(err)
	}
	a.expect(t, 2, 0)
	a.has(t, "other", want)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// cutInTheMiddle is the end of a handle.
func (a *archived) cutInTheMiddle(t *testing.T) {
	a.put(t, "cut", random(16*large)) // more than is on its way
	a.went()
	r, err := a.Open(t.Context(), "cut")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	a.expect(t, 0, 1)
	a.proxy.Cut()
	n, err := io.Copy(io.Discard, r)
	if n >= 16*large-10 || !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("read %d bytes more, then %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// terminatedInTheMiddle is the end of a sandbox. Terminate does not wait for the file.
func (a *archived) terminatedInTheMiddle(t *testing.T) {
	a.went()
	var ending sync.WaitGroup
	r := &during{Reader: bytes.NewReader(random(4 * large)), do: func() error {
		ending.Go(func() {
			if _, err := a.Terminate(t.Context()); err != nil {
				t.Error(err)
			}
		})
		await(t, func() bool { return a.Err() != nil })
		return nil
	}}
	if err := a.WriteFile(t.Context(), "ended", r, primitives.WriteOptions{}); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("got %v", err)
	}
	ending.Wait()
	a.expect(t, 2, 0)
}

// giveWay is for an archive that keeps the engine from answering.
func (a *archived) giveWay(t *testing.T) {
	want := random(16 * large) // more than is on its way
	a.put(t, "way", want)
	a.expect(t, 1, 0)
	r, err := a.Open(t.Context(), "way")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, large)
	if _, err := io.ReadFull(r, got); err != nil {
		t.Fatal(err)
	}
	a.expect(t, 0, 1)
	// Another archive does not wait for this one, nor does the engine's answer.
	a.put(t, "meanwhile", want[:large])
	if state, err := a.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("poll: %+v, %v", state, err)
	}
	rest, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(append(got, rest...), want) {
		t.Errorf("%d bytes more, %v", len(rest), err)
	}
	var asking sync.WaitGroup
	err = a.WriteFile(t.Context(), "way", &during{Reader: bytes.NewReader(want), do: func() error {
		asking.Go(func() {
			if _, err := a.ReadUsage(t.Context()); err != nil {
				t.Error(err)
			}
		})
		return nil
	}}, primitives.WriteOptions{})
	asking.Wait()
	if err != nil {
		t.Error(err)
	}
	a.has(t, "way", want)
}
