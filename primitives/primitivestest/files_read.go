package primitivestest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
)

// roundTrip writes a file, reads it back and compares it with the sandbox's own view.
func (s *sandbox) roundTrip(t testingT, name, content string) {
	t.Helper()
	s.write(t, name, content)
	if got := s.read(t, name); got != content {
		t.Errorf("%q: read %s, wrote %s", name, brief(got), brief(content))
	}
	expect(t, "content seen inside", s.inside(t, name), fmt.Sprintf("%d %s", len(content), sum(content)))
}

// inside returns the length and sum of a file as a process of the sandbox reads it.
func (s *sandbox) inside(t testingT, name string) string {
	t.Helper()
	return s.probed(t, "sum", name)
}

// openError expects that Open of a file fails.
func (s *sandbox) openError(t testingT, name string, want ...error) {
	t.Helper()
	r, err := s.Open(t.Context(), name)
	if err == nil {
		t.Errorf("Open %q: no error, close gave %v", name, r.Close())
		return
	}
	expectError(t, "Open", err, want...)
}

// readRules returns the rules about reading files.
func readRules() []rule { return concat(contentReadRules(), refusedReadRules()) }

func contentReadRules() []rule {
	return []rule{
		{name: "text comes back as it was written", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", "great #content\nincluding newlines\r\nof both kinds")
		}},
		{name: "bytes that are no text come back as they were written", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", "\xc3\x28\x00\xff")
		}},
		{name: "UTF-8 comes back as it was written", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", "✨☽︎✨🌞︎︎✨🚀✨")
		}},
		{name: "an empty file is empty, not missing", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", "")
		}},
		{name: "fifty mebibytes come back as they were written", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", strings.Repeat("\xc3", 50<<20))
		}},
	}
}

func refusedReadRules() []rule { return concat(missingFileRules(), specialFileRules()) }

func missingFileRules() []rule {
	return []rule{
		{name: "a missing file is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			s.openError(t, s.in("nothing"), fs.ErrNotExist)
			s.openError(t, s.in("no", "parent", "either"), fs.ErrNotExist)
			s.openError(t, s.abs("nothing"), fs.ErrNotExist)
		}},
		{name: "the error of a missing file says which", check: func(t testingT, s *sandbox) {
			_, err := s.Open(t.Context(), s.in("nothing-here"))
			var where *primitives.Error
			if !errors.As(err, &where) || !strings.Contains(where.Target, "nothing-here") || where.Op == "" || where.Backend == "" {
				t.Errorf("error is %#v, want one with operation, backend and target", where)
			}
		}},
		{name: "a path is not decoded like a URL", check: func(t testingT, s *sandbox) {
			s.openError(t, s.in("https:/en.wikipedia.org/wiki/Bart%C5%82omiej_Kasprzykowski"), fs.ErrNotExist)
			s.roundTrip(t, "test%46.txt", "x")
			s.openError(t, s.in("testF.txt"), fs.ErrNotExist)
		}},
		{name: "opening a directory is ErrIsDirectory", check: func(t testingT, s *sandbox) {
			s.openError(t, s.dir, primitives.ErrIsDirectory)
			s.openError(t, "/", primitives.ErrIsDirectory)
		}},
		{name: "a path below a file is ErrNotDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "file", "")
			s.openError(t, s.in("file", "below"), primitives.ErrNotDirectory)
		}},
		{name: "a file without read permission is fs.ErrPermission", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "secret")
			s.probed(t, "chmod", "000", "f")
			if s.probed(t, "may-read", "f") == "true" {
				expect(t, "content", s.read(t, "f"), "secret")
				return
			}
			s.openError(t, s.in("f"), fs.ErrPermission)
		}},
	}
}

func specialFileRules() []rule {
	return []rule{
		{name: "opening a FIFO is ErrNotRegular at once", check: func(t testingT, s *sandbox) {
			s.probed(t, "fifo", "pipe")
			s.within(t, "Open of a FIFO", func() error {
				s.openError(t, s.in("pipe"), primitives.ErrNotRegular)
				return nil
			})
		}},
		{name: "opening a socket is ErrNotRegular", check: func(t testingT, s *sandbox) {
			s.probed(t, "socket", "sock")
			s.openError(t, s.in("sock"), primitives.ErrNotRegular)
		}},
		{name: "opening a device is ErrNotRegular", check: func(t testingT, s *sandbox) {
			s.openError(t, "/dev/zero", primitives.ErrNotRegular)
		}},
		{name: "a symbolic link is read through", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "content")
			s.probed(t, "symlink", "f", "one", "symlink", "one", "two")
			expect(t, "content", s.read(t, "two"), "content")
		}},
		{name: "a dangling symbolic link is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			s.probed(t, "symlink", "nowhere", "link")
			s.openError(t, s.in("link"), fs.ErrNotExist)
		}},
		{name: "a circle of symbolic links is an error", check: func(t testingT, s *sandbox) {
			s.probed(t, "symlink", "b", "a", "symlink", "a", "b")
			s.openError(t, s.in("a"))
		}},
		{name: "an opened file is a well-behaved reader", check: func(t testingT, s *sandbox) {
			s.write(t, "f", alphabet(300000))
			r, err := s.Open(t.Context(), s.in("f"))
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			if err := iotest.TestReader(onlyReader{r}, []byte(alphabet(300000))); err != nil {
				t.Errorf("reader: %v", err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}},
		{name: "a file is read as a stream, however large", check: func(t testingT, s *sandbox) {
			s.probed(t, "sparse", "6442450944", "f")
			expect(t, "size", s.stat(t, "f").Size, int64(6)<<30)
			r, err := s.Open(t.Context(), s.in("f"))
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			if n, err := io.CopyN(io.Discard, r, 1<<20); n != 1<<20 {
				t.Errorf("read %d bytes of the first mebibyte: %v", n, err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("Close in the middle: %v", err)
			}
		}},
		{name: "ReadFile returns what fits and ErrLimit", check: func(t testingT, s *sandbox) {
			s.write(t, "f", alphabet(2048))
			b, err := primitives.ReadFile(t.Context(), s.EnvironmentPrimitive, s.in("f"), 1024)
			expectError(t, "ReadFile", err, primitives.ErrLimit)
			expect(t, "content", string(b), alphabet(1024))
			b, err = primitives.ReadFile(t.Context(), s.EnvironmentPrimitive, s.in("f"), 2048)
			expect(t, "error at the limit", err, nil)
			expect(t, "length", len(b), 2048)
		}},
		{name: "reading with a cancelled context is its error", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			r, err := s.Open(ctx, s.in("f"))
			if err == nil {
				_, err = io.ReadAll(r)
				if cerr := r.Close(); cerr != nil {
					t.Logf("Close: %v", cerr)
				}
			}
			expectError(t, "Open and read", err, context.Canceled)
		}},
	}
}
