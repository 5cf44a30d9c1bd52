package guest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// byHand is a Bypass for a guest on this machine that counts what goes by it.
type byHand struct {
	guest.Bypass
	puts, gets atomic.Int64 // that succeeded
}

func newByHand(minSize int64) *byHand {
	b := &byHand{Bypass: guest.Bypass{MinSize: minSize, Mounts: []string{"/", os.TempDir()}}}
	b.Put = func(_ context.Context, to guest.Staged, content io.Reader, size int64) error {
		f, err := os.OpenFile(filepath.Join(to.Dir, to.Name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(f, content)
		if err == nil && n != size {
			err = io.ErrShortWrite
		}
		if err = errors.Join(err, f.Chown(to.UID, to.GID), f.Close()); err == nil {
			b.puts.Add(1)
		}
		return err
	}
	b.Get = func(_ context.Context, file guest.Located) (io.ReadCloser, error) {
		f, err := os.Open(file.Path)
		if err == nil {
			b.gets.Add(1)
		}
		return f, err
	}
	return b
}

// serveBeside serves a new sandbox to a client with a Bypass.
func serveBeside(t *testing.T, b *byHand) (s *served, root string) {
	t.Helper()
	root = t.TempDir()
	engine, err := local.New(t.Context(), local.Config{Root: root})
	p, err := serveLocal(t.Context(), guest.Config{Bypass: &b.Bypass}, engine, err)
	if err != nil {
		t.Fatal(err)
	}
	s = p.(*served)
	t.Cleanup(func() {
		// Nothing is left where files were staged, nor where they were to be.
		for _, dir := range []string{root, s.Paths().Workspace} {
			left, err := filepath.Glob(filepath.Join(dir, ".agentenv-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left in %s: %q, %v", dir, left, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, root
}

// TestContractBeside has every file of the contract go by a Bypass that can.
func TestContractBeside(t *testing.T) {
	b := newByHand(1)
	primitivestest.Run(t, primitivestest.Harness{
		Groups: []string{"files", "archive", "watch"},
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			engine, err := local.New(ctx, local.Config{Root: dir, Runner: runnerOf(t)})
			return serveLocal(ctx, guest.Config{Bypass: &b.Bypass}, engine, err)
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			engine, err := local.Attach(ctx, local.Config{Root: dir, Runner: runnerOf(t)}, id)
			return serveLocal(ctx, guest.Config{Bypass: &b.Bypass}, engine, err)
		},
	})
	if b.puts.Load() < 10 || b.gets.Load() < 10 {
		t.Errorf("%d files went in and %d came out", b.puts.Load(), b.gets.Load())
	}
}

// content reads a whole file of a sandbox.
func content(t *testing.T, s primitives.Files, name string) string {
	t.Helper()
	r, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// tampered is a source of known size that turns out to be another.
type tampered struct {
	*strings.Reader
	end error
}

func (r *tampered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 && r.end != nil {
		return n, nil
	}
	if r.end != nil {
		err = r.end
	}
	return n, err
}

// growing is a source to which something is added after its size was asked for.
type growing struct {
	io.ReadSeeker
	more io.Reader
}

func (r *growing) Read(p []byte) (int, error) {
	n, err := r.ReadSeeker.Read(p)
	if errors.Is(err, io.EOF) {
		return r.more.Read(p)
	}
	return n, err
}

func TestSourcesOfAllKindsArriveWhole(t *testing.T) {
	b := newByHand(4)
	s, _ := serveBeside(t, b)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("-content"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if _, err := f.Seek(1, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, c := range []struct {
		rule   string
		r      io.Reader
		beside bool
	}{
		{"a file from where it stands", open(), true},
		{"the beginning of a file", io.LimitReader(open(), 5), true},
		{"more than a file has", io.LimitReader(open(), 500), true},
		{"bytes", bytes.NewReader([]byte("content")), true},
		{"a buffer", bytes.NewBufferString("content"), true},
		{"a section", io.NewSectionReader(open(), 1, 7), true},
		{"what grows", &growing{strings.NewReader("cont"), strings.NewReader("ent")}, true},
		{"what is small", strings.NewReader("con"), false},
		{"the beginning of a buffer", io.LimitReader(bytes.NewBufferString("content"), 5), false},
		{"what has no size", iotest.OneByteReader(strings.NewReader("content")), false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			before := b.puts.Load()
			if err := s.WriteFile(t.Context(), "f", c.r, primitives.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			if beside := b.puts.Load() > before; beside != c.beside {
				t.Errorf("beside the stream: %v", beside)
			}
			if got := content(t, s, "f"); !strings.HasPrefix("content", got) || len(got) < 3 {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestWhatEndsAWriteLeavesTheOldFile(t *testing.T) {
	cause := errors.New("a bad sector")
	for rule, c := range map[string]struct {
		r    func(cancel func()) io.Reader
		want error
	}{
		"the source fails": {func(func()) io.Reader { return &tampered{strings.NewReader("content"), cause} }, cause},
		"the context is done": {func(cancel func()) io.Reader {
			return &growing{&cancelling{strings.NewReader("content"), cancel}, strings.NewReader("")}
		}, context.Canceled},
	} {
		t.Run(rule, func(t *testing.T) {
			b := newByHand(4)
			s, _ := serveBeside(t, b)
			if err := s.WriteFile(t.Context(), "f", strings.NewReader("old file"), primitives.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := s.WriteFile(ctx, "f", c.r(cancel), primitives.WriteOptions{})
			if where, ok := errors.AsType[*primitives.Error](err); !errors.Is(err, c.want) || !ok || where.Op != "write" || where.Target != "f" {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := content(t, s, "f"); got != "old file" {
				t.Errorf("the file became %q", got)
			}
		})
	}
}

// cancelling is a source that cancels what reads it.
type cancelling struct {
	io.ReadSeeker
	cancel func()
}

func (r *cancelling) Read(p []byte) (int, error) {
	r.cancel()
	return r.ReadSeeker.Read(p[:1])
}

func TestWhatDoesNotWorkBesideGoesOverTheStream(t *testing.T) {
	refused := errors.New("refused")
	for rule, change := range map[string]func(b *byHand){
		"nothing can be put": func(b *byHand) {
			b.Put = func(context.Context, guest.Staged, io.Reader, int64) error { return refused }
		},
		"what is put does not arrive": func(b *byHand) {
			b.Put = func(context.Context, guest.Staged, io.Reader, int64) error { return nil }
		},
		"putting fails in the middle": func(b *byHand) {
			put := b.Put
			b.Put = func(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
				if size > 1 {
					size, content = 2, io.LimitReader(content, 2)
					return errors.Join(put(ctx, to, content, size), refused)
				}
				return put(ctx, to, content, size)
			}
		},
		"something else arrives": func(b *byHand) {
			put := b.Put
			b.Put = func(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
				if size > 1 {
					return put(ctx, to, io.LimitReader(content, 3), 3)
				}
				return put(ctx, to, content, size)
			}
		},
		"nothing can be got": func(b *byHand) {
			b.Get = func(context.Context, guest.Located) (io.ReadCloser, error) { return nil, refused }
		},
		"the file is in another file system": func(b *byHand) { b.Mounts = []string{"/proc"} },
	} {
		t.Run(rule, func(t *testing.T) {
			b := newByHand(4)
			change(b)
			s, _ := serveBeside(t, b)
			for _, want := range []string{"content", "another content"} {
				if err := s.WriteFile(t.Context(), "f", strings.NewReader(want), primitives.WriteOptions{}); err != nil {
					t.Fatal(err)
				}
				if got := content(t, s, "f"); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}

func TestWhatIsRefusedIsNotTakenFromTheSource(t *testing.T) {
	b := newByHand(4)
	s, _ := serveBeside(t, b)
	if err := s.WriteFile(t.Context(), "f", strings.NewReader("there"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		opts primitives.WriteOptions
		want error
	}{
		{"../outside", primitives.WriteOptions{}, primitives.ErrPathEscape},
		{"f", primitives.WriteOptions{Exclusive: true}, fs.ErrExist},
		{"f", primitives.WriteOptions{IfRevision: "x"}, primitives.ErrConflict},
		{"f/g", primitives.WriteOptions{}, primitives.ErrNotDirectory},
		{".", primitives.WriteOptions{}, primitives.ErrIsDirectory},
	} {
		r := strings.NewReader("content")
		if err := s.WriteFile(t.Context(), c.name, r, c.opts); !errors.Is(err, c.want) || r.Len() != 7 {
			t.Errorf("%s %+v: %v, %d bytes are left", c.name, c.opts, err, r.Len())
		}
	}
}

func TestAWriteBesideIsTheVeryFileAndOfNow(t *testing.T) {
	b := newByHand(4)
	put := b.Put
	var staged fs.FileInfo
	b.Put = func(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
		err := put(ctx, to, content, size)
		name := filepath.Join(to.Dir, to.Name)
		err = errors.Join(err, os.Chtimes(name, time.Unix(1, 0), time.Unix(1, 0)))
		var serr error
		staged, serr = os.Stat(name)
		return errors.Join(err, serr)
	}
	s, _ := serveBeside(t, b)
	before := time.Now().Add(-time.Second)
	if err := s.WriteFile(t.Context(), "f", strings.NewReader("content"), primitives.WriteOptions{Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if info, err := s.Stat(t.Context(), "f"); err != nil || info.ModTime.Before(before) || info.Mode != 0o640 {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(s.Paths().Workspace, "f")); err != nil || !os.SameFile(info, staged) {
		t.Errorf("it was copied: %v", err)
	}
}

func TestAWriteBesideIsWhatItWouldBeMadeInPlace(t *testing.T) {
	b := newByHand(4)
	s, _ := serveBeside(t, b)
	group := os.Getegid()
	if os.Geteuid() == 0 {
		group = 4321
	}
	dir := filepath.Join(s.Paths().Workspace, "dir")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, -1, group), os.Chmod(dir, 0o755|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"content", "another"} { // the second replaces the first
		if err := s.WriteFile(t.Context(), "dir/f", strings.NewReader(content), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		info, err := s.Stat(t.Context(), "dir/f")
		if err != nil || info.GID != group || info.UID != os.Geteuid() || info.Mode != 0o644 {
			t.Errorf("got %+v, %v, want group %d", info, err, group)
		}
	}
	if b.puts.Load() != 3 {
		t.Errorf("%d files went beside the stream", b.puts.Load())
	}
}

func TestStrangersCannotStage(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret!"), 0o600); err != nil {
		t.Fatal(err)
	}
	for rule, place := range map[string]func(name string) error{
		"a link":         func(name string) error { return os.Symlink(secret, name) },
		"another's file": func(name string) error { return os.Link(secret, name) },
		"a directory":    func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		t.Run(rule, func(t *testing.T) {
			b := newByHand(4)
			put, staged := b.Put, ""
			b.Put = func(ctx context.Context, to guest.Staged, content io.Reader, size int64) error {
				if size == 1 {
					return put(ctx, to, content, size)
				}
				staged = filepath.Join(to.Dir, to.Name)
				return errors.Join(os.RemoveAll(staged), place(staged))
			}
			s, _ := serveBeside(t, b)
			if err := s.WriteFile(t.Context(), "f", strings.NewReader("content"), primitives.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := content(t, s, "f"); got != "content" {
				t.Errorf("got %q", got)
			}
			if got, err := os.ReadFile(secret); string(got) != "secret!" || err != nil {
				t.Errorf("the secret became %q, %v", got, err)
			}
			_ = os.Remove(staged) // a directory is not what the guest removes
		})
	}
}
