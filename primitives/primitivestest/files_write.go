package primitivestest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

// put writes a file of the case with options and returns the error.
func (s *sandbox) put(t testingT, name, content string, opts primitives.WriteOptions) error {
	t.Helper()
	return s.WriteFile(t.Context(), s.in(name), strings.NewReader(content), opts)
}

// insideInfo is a file as a process of the sandbox sees it.
type insideInfo struct {
	Mode  uint32
	Size  int64
	Links int
	UID   int
	GID   int
}

func (s *sandbox) lstat(t testingT, name string) insideInfo {
	t.Helper()
	var info insideInfo
	if err := json.Unmarshal([]byte(s.probed(t, "stat", name)), &info); err != nil {
		t.Fatalf("stat from the probe: %v", err)
	}
	return info
}

// names lists a folder of the case as a process of the sandbox sees it, including hidden
// leftovers.
func (s *sandbox) names(t testingT, dir string) string {
	t.Helper()
	var names []string
	if err := json.Unmarshal([]byte(s.probed(t, "names", dir)), &names); err != nil {
		t.Fatalf("names from the probe: %v", err)
	}
	return strings.Join(names, " ")
}

// writeRules returns the rules about writing files.
func writeRules() []rule {
	return concat(overwriteRules(), optionRules(), linkRules(), refusedWriteRules())
}

func overwriteRules() []rule {
	return []rule{
		{name: "missing parents are made for a relative path", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "a/b/c/file", "deep")
		}},
		{name: "missing parents are made for an absolute path", check: func(t testingT, s *sandbox) {
			err := s.WriteFile(t.Context(), s.abs("x", "y", "file"), strings.NewReader("deep"), primitives.WriteOptions{})
			expect(t, "error", err, nil)
			expect(t, "content", s.read(t, "x/y/file"), "deep")
		}},
		{name: "a second write replaces the content", check: func(t testingT, s *sandbox) {
			s.roundTrip(t, "f", "a long first content")
			s.roundTrip(t, "f", "short")
			s.roundTrip(t, "f", "")
		}},
		{name: "a new file has mode 0644", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			expect(t, "mode", s.lstat(t, "f").Mode, 0o644)
		}},
		{name: "a new file has the mode that was asked for", check: func(t testingT, s *sandbox) {
			for _, mode := range []fs.FileMode{0o600, 0o755, 0o666, 0o400} {
				name := fmt.Sprintf("f%o", mode)
				expect(t, "error", s.put(t, name, "", primitives.WriteOptions{Mode: mode}), nil)
				expect(t, "mode", s.lstat(t, name).Mode, uint32(mode))
			}
		}},
		{name: "overwriting keeps the mode", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			s.probed(t, "chmod", "751", "f")
			s.write(t, "f", "new")
			expect(t, "mode", s.lstat(t, "f").Mode, 0o751)
		}},
		{name: "overwriting with a mode sets it", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			expect(t, "error", s.put(t, "f", "new", primitives.WriteOptions{Mode: 0o700}), nil)
			expect(t, "mode", s.lstat(t, "f").Mode, 0o700)
		}},
		{name: "a file belongs to the user of the sandbox", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			info := s.lstat(t, "f")
			expect(t, "owner", fmt.Sprintf("%d:%d", info.UID, info.GID), s.probed(t, "ids"))
		}},
		{name: "concurrent writes of one file leave one of them whole", check: func(t testingT, s *sandbox) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					content := strings.Repeat(string(rune('a'+i)), 100_000)
					if err := s.put(t, "f", content, primitives.WriteOptions{}); err != nil {
						t.Errorf("WriteFile: %v", err)
					}
				})
			}
			wg.Wait()
			got := s.read(t, "f")
			expect(t, "length", len(got), 100_000)
			expect(t, "one writer's content", got == strings.Repeat(got[:1], 100_000), true)
			expect(t, "files", s.names(t, "."), "f")
		}},
		{name: "a reader sees one version whole", check: checkWholeVersions},
		{name: "concurrent writes into one new folder all succeed", check: func(t testingT, s *sandbox) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if err := s.put(t, fmt.Sprintf("new/deep/f%d", i), "x", primitives.WriteOptions{}); err != nil {
						t.Errorf("WriteFile: %v", err)
					}
				})
			}
			wg.Wait()
			expect(t, "files", s.list(t, "new/deep", primitives.ListOptions{}), "f0 f1 f2 f3 f4 f5 f6 f7")
		}},
	}
}

func checkWholeVersions(t testingT, s *sandbox) {
	s.write(t, "f", strings.Repeat("0", 200_000))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 10 {
			if err := s.put(t, "f", strings.Repeat(string(rune('1'+i)), 200_000), primitives.WriteOptions{}); err != nil {
				t.Errorf("WriteFile: %v", err)
			}
		}
	})
	for range 20 {
		b, err := primitives.ReadFile(t.Context(), s.EnvironmentPrimitive, s.in("f"), 0)
		if err != nil {
			t.Errorf("ReadFile: %v", err)
			break
		}
		if len(b) != 200_000 || strings.Trim(string(b), string(b[:1])) != "" {
			t.Errorf("a reader saw a mixture of %d bytes", len(b))
		}
	}
	wg.Wait()
}

func optionRules() []rule {
	return []rule{
		{name: "Append adds to the end", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			expect(t, "error", s.put(t, "f", " two", primitives.WriteOptions{Append: true}), nil)
			expect(t, "error", s.put(t, "f", " three", primitives.WriteOptions{Append: true}), nil)
			expect(t, "content", s.read(t, "f"), "one two three")
		}},
		{name: "Append makes a missing file and its parents", check: func(t testingT, s *sandbox) {
			expect(t, "error", s.put(t, "new/f", "x", primitives.WriteOptions{Append: true}), nil)
			expect(t, "content", s.read(t, "new/f"), "x")
		}},
		{name: "Append keeps other hard links up to date", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			s.probed(t, "link", "f", "other")
			expect(t, "error", s.put(t, "f", " two", primitives.WriteOptions{Append: true}), nil)
			expect(t, "other link", s.read(t, "other"), "one two")
		}},
		{name: "Exclusive writes a new file", check: func(t testingT, s *sandbox) {
			expect(t, "error", s.put(t, "f", "x", primitives.WriteOptions{Exclusive: true}), nil)
			expect(t, "content", s.read(t, "f"), "x")
		}},
		{name: "Exclusive refuses an existing file with fs.ErrExist", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			expectError(t, "WriteFile", s.put(t, "f", "new", primitives.WriteOptions{Exclusive: true}), fs.ErrExist)
			expect(t, "content", s.read(t, "f"), "old")
			expect(t, "files", s.names(t, "."), "f")
		}},
		{name: "of many exclusive writers one wins", check: func(t testingT, s *sandbox) {
			errs := make(chan error)
			for i := range 8 {
				go func() { errs <- s.put(t, "f", fmt.Sprint(i), primitives.WriteOptions{Exclusive: true}) }()
			}
			won := 0
			for range 8 {
				if err := <-errs; err == nil {
					won++
				} else if !errors.Is(err, fs.ErrExist) {
					t.Errorf("WriteFile: %v", err)
				}
			}
			expect(t, "winners", won, 1)
		}},
		{name: "IfRevision writes the file that was described", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			rev := s.stat(t, "f").Revision
			expect(t, "error", s.put(t, "f", "two", primitives.WriteOptions{IfRevision: rev}), nil)
			expect(t, "content", s.read(t, "f"), "two")
		}},
		{name: "IfRevision refuses a file that was changed with ErrConflict", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			rev := s.stat(t, "f").Revision
			s.probed(t, "append", "f", " by another program")
			expectError(t, "WriteFile", s.put(t, "f", "two", primitives.WriteOptions{IfRevision: rev}), primitives.ErrConflict)
			expect(t, "content", s.read(t, "f"), "one by another program")
		}},
		{name: "IfRevision refuses a file that was replaced with ErrConflict", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			rev := s.stat(t, "f").Revision
			s.probed(t, "write", "g", "one", "rename", "g", "f")
			expectError(t, "WriteFile", s.put(t, "f", "two", primitives.WriteOptions{IfRevision: rev}), primitives.ErrConflict)
			expect(t, "content", s.read(t, "f"), "one")
		}},
		{name: "IfRevision refuses a file that is gone with ErrConflict", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			rev := s.stat(t, "f").Revision
			s.probed(t, "rm", "f")
			expectError(t, "WriteFile", s.put(t, "f", "two", primitives.WriteOptions{IfRevision: rev}), primitives.ErrConflict)
			expect(t, "files", s.names(t, "."), "")
		}},
	}
}

func linkRules() []rule {
	return []rule{
		{name: "a symbolic link is written through", check: func(t testingT, s *sandbox) {
			s.write(t, "dir/f", "old")
			s.probed(t, "symlink", "dir/f", "link")
			s.write(t, "link", "new")
			expect(t, "target", s.read(t, "dir/f"), "new")
			expect(t, "link", s.stat(t, "link").Target, "dir/f")
			expect(t, "files", s.names(t, ".")+","+s.names(t, "dir"), "dir link,f")
		}},
		{name: "a dangling symbolic link is written through", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir", "symlink", "dir/f", "link")
			s.write(t, "link", "new")
			expect(t, "target", s.read(t, "dir/f"), "new")
			expect(t, "link", s.stat(t, "link").Target, "dir/f")
		}},
		{name: "another hard link keeps the old content", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			s.probed(t, "link", "f", "other")
			s.write(t, "f", "new")
			expect(t, "f", s.read(t, "f"), "new")
			expect(t, "other", s.read(t, "other"), "old")
		}},
		{name: "a process that has the file open keeps reading the old content", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			r, err := s.Open(t.Context(), s.in("f"))
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			s.write(t, "f", "new and longer")
			expect(t, "content", s.readAll(t, r), "old")
			expect(t, "error of Close", r.Close(), nil)
		}},
	}
}

func refusedWriteRules() []rule {
	var rules []rule
	for _, opts := range []primitives.WriteOptions{{}, {Append: true}} {
		how := "writing to "
		if opts.Append {
			how = "appending to "
		}
		rules = append(
			rules,
			rule{name: how + "a directory is ErrIsDirectory", check: func(t testingT, s *sandbox) {
				s.probed(t, "mkdir", "dir")
				expectError(t, "WriteFile", s.put(t, "dir", "x", opts), primitives.ErrIsDirectory)
				expect(t, "files", s.names(t, "."), "dir")
			}},
			rule{name: how + "a path below a file is ErrNotDirectory", check: func(t testingT, s *sandbox) {
				s.write(t, "f", "x")
				expectError(t, "WriteFile", s.put(t, "f/below", "x", opts), primitives.ErrNotDirectory)
				expectError(t, "WriteFile", s.put(t, "f/far/below", "x", opts), primitives.ErrNotDirectory)
			}},
			rule{name: how + "a FIFO is ErrNotRegular at once", check: func(t testingT, s *sandbox) {
				s.probed(t, "fifo", "pipe")
				s.within(t, "WriteFile on a FIFO", func() error {
					expectError(t, "WriteFile", s.put(t, "pipe", "x", opts), primitives.ErrNotRegular)
					return nil
				})
				expect(t, "type", s.stat(t, "pipe").Mode.Type(), fs.ModeNamedPipe)
			}},
			rule{name: how + "a device is ErrNotRegular", check: func(t testingT, s *sandbox) {
				err := s.WriteFile(t.Context(), "/dev/null", strings.NewReader("x"), opts)
				expectError(t, "WriteFile", err, primitives.ErrNotRegular)
			}},
			rule{name: how + "a read-only file is fs.ErrPermission", check: func(t testingT, s *sandbox) {
				s.write(t, "f", "old")
				s.probed(t, "chmod", "444", "f")
				err := s.put(t, "f", "new", opts)
				if s.probed(t, "may-write", "f") == "true" {
					expect(t, "error", err, nil)
					return
				}
				expectError(t, "WriteFile", err, fs.ErrPermission)
				expect(t, "content", s.read(t, "f"), "old")
			}},
		)
	}
	return rules
}
