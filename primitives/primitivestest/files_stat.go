package primitivestest

import (
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// statRules returns the rules about Stat.
func statRules() []rule { return concat(statTypeRules(), statPathRules()) }

func statTypeRules() []rule {
	return []rule{
		{name: "Stat describes a file", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "12345")
			s.probed(t, "chmod", "751", "f")
			info := s.stat(t, "f")
			inside := s.lstat(t, "f")
			expect(t, "path", info.Path, s.in("f"))
			expect(t, "size", info.Size, int64(5))
			expect(t, "mode", info.Mode, fs.FileMode(0o751))
			expect(t, "uid", info.UID, inside.UID)
			expect(t, "gid", info.GID, inside.GID)
			expect(t, "target", info.Target, "")
			expect(t, "directory", info.IsDir(), false)
			if info.ModTime.IsZero() || info.Revision == "" {
				t.Errorf("info %+v has no time or no revision", info)
			}
		}},
		{name: "Stat describes a directory", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir")
			info := s.stat(t, "dir")
			expect(t, "directory", info.IsDir(), true)
			expect(t, "mode", info.Mode, fs.ModeDir|0o755)
			expect(t, "size", info.Size, int64(0))
			expect(t, "revision", info.Revision, "")
		}},
		{name: "Stat describes a symbolic link and does not follow it", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "12345")
			s.probed(t, "symlink", "f", "link", "symlink", "../no where", "dangling")
			expect(t, "type", s.stat(t, "link").Mode.Type(), fs.ModeSymlink)
			expect(t, "target", s.stat(t, "link").Target, "f")
			expect(t, "size", s.stat(t, "link").Size, int64(0))
			expect(t, "target of a dangling one", s.stat(t, "dangling").Target, "../no where")
		}},
		{name: "Stat describes a FIFO, a socket and a device at once", check: func(t testingT, s *sandbox) {
			s.probed(t, "fifo", "pipe", "socket", "sock")
			expect(t, "FIFO", s.stat(t, "pipe").Mode.Type(), fs.ModeNamedPipe)
			expect(t, "socket", s.stat(t, "sock").Mode.Type(), fs.ModeSocket)
			info, err := s.Stat(t.Context(), "/dev/null")
			expect(t, "error", err, nil)
			expect(t, "device", info.Mode.Type(), fs.ModeDevice|fs.ModeCharDevice)
		}},
		{name: "Stat shows set-user-id and sticky bits as io/fs does", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			s.probed(t, "mkdir", "dir", "chmod", "1777", "dir", "chmod", "755", "f")
			want := fs.ModeSetuid | 0o755
			res := s.run(t, s.command("chmod", "4755", "f"), primitives.RunOptions{})
			expect(t, "refused", !res.Status.Success(), s.suite.h.NoSetID)
			if s.suite.h.NoSetID {
				want = 0o755
			}
			expect(t, "file", s.stat(t, "f").Mode, want)
			expect(t, "directory", s.stat(t, "dir").Mode, fs.ModeDir|fs.ModeSticky|0o777)
		}},
	}
}

func statPathRules() []rule {
	return []rule{
		{name: "Stat of a missing path is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			for _, name := range []string{"nothing", "no/parent", "nothing/"} {
				_, err := s.Stat(t.Context(), s.dir+"/"+name)
				expectError(t, name, err, fs.ErrNotExist)
			}
		}},
		{name: "Stat below a file is ErrNotDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			_, err := s.Stat(t.Context(), s.in("f", "below"))
			expectError(t, "Stat", err, primitives.ErrNotDirectory)
		}},
		{name: "Stat of an absolute path names it as asked", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			info, err := s.Stat(t.Context(), s.abs("f"))
			expect(t, "error", err, nil)
			expect(t, "path", info.Path, s.abs("f"))
		}},
		{name: "the revision stays while the file stays", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			expect(t, "revision", s.stat(t, "f").Revision, s.stat(t, "f").Revision)
		}},
		{name: "the revision changes with the content, also with content of the same length", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "one")
			seen := []string{s.stat(t, "f").Revision}
			for _, content := range []string{"two", "six", "one"} {
				s.write(t, "f", content)
				rev := s.stat(t, "f").Revision
				if slices.Contains(seen, rev) {
					t.Errorf("revision %q came back for %q", rev, content)
				}
				seen = append(seen, rev)
			}
		}},
		{name: "the modification time is that of the sandbox's file system", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			inside := s.probed(t, "stat", "f")
			_, rest, _ := strings.Cut(inside, `"mtime":"`)
			stamp, _, _ := strings.Cut(rest, `"`)
			want, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				t.Fatalf("time from the probe: %v", err)
			}
			expect(t, "modification time", s.stat(t, "f").ModTime.Equal(want), true)
		}},
	}
}

// buildTree creates the tree that several cases list.
func buildTree(t testingT, s *sandbox) {
	t.Helper()
	s.probed(t, "mkdir", "a/b/c", "write", "a/b/c/deep.go", "", "write", "a/b/mid.go", "", "write", "a/top.txt", "", "write", "z.go", "", "write", "B", "")
}

// listRules returns the rules about List.
func listRules() []rule { return concat(listDepthRules(), listRefusalRules(), patternRules()) }

func listDepthRules() []rule {
	all := primitives.ListOptions{Depth: -1}
	return []rule{
		{name: "List returns the direct children", check: func(t testingT, s *sandbox) {
			buildTree(t, s)
			expect(t, "depth 0", s.list(t, ".", primitives.ListOptions{}), "B a z.go")
			expect(t, "depth 1", s.list(t, ".", primitives.ListOptions{Depth: 1}), "B a z.go")
		}},
		{name: "List goes as deep as Depth", check: func(t testingT, s *sandbox) {
			buildTree(t, s)
			expect(t, "depth 2", s.list(t, ".", primitives.ListOptions{Depth: 2}), "B a a/b a/top.txt z.go")
			expect(t, "everything", s.list(t, ".", all), "B a a/b a/b/c a/b/c/deep.go a/b/mid.go a/top.txt z.go")
		}},
		{name: "List sorts by path, byte by byte", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "write", "a/x", "", "write", "a-b", "", "write", "a.b", "", "write", "a0", "", "write", "é", "", "write", "Z", "", "write", "_", "")
			got := strings.Split(s.list(t, ".", all), " ")
			expect(t, "sorted", slices.IsSorted(got), true)
			expect(t, "order", strings.Join(got, " "), "Z _ a a-b a.b a/x a0 é")
		}},
		{name: "List of an empty directory is empty and no error", check: func(t testingT, s *sandbox) {
			expect(t, "list", s.list(t, ".", all), "")
		}},
		{name: "List shows hidden files", check: func(t testingT, s *sandbox) {
			s.probed(t, "write", ".hidden", "", "mkdir", ".dir", "write", ".dir/x", "")
			expect(t, "list", s.list(t, ".", all), ".dir .dir/x .hidden")
		}},
		{name: "List describes like Stat", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "12345")
			s.probed(t, "symlink", "f", "link", "mkdir", "dir", "fifo", "pipe")
			// gVisor may date a file once more, some time after it was written.
			var infos []primitives.FileInfo
			wants := map[string]primitives.FileInfo{}
			for rounds, stays := 10, false; rounds > 0 && !stays; rounds-- {
				var err error
				infos, err = s.List(t.Context(), s.dir, all)
				if err != nil || len(infos) != 4 {
					t.Fatalf("List: %d entries and %v", len(infos), err)
				}
				stays = true
				for _, info := range infos {
					is := s.stat(t, info.Path)
					stays = stays && is.Revision == wants[info.Path].Revision
					wants[info.Path] = is
				}
			}
			for _, info := range infos {
				want := wants[info.Path]
				want.Path = info.Path
				if !want.ModTime.Equal(info.ModTime) {
					t.Errorf("%s: time %v, want %v", info.Path, info.ModTime, want.ModTime)
				}
				want.ModTime = info.ModTime
				expect(t, info.Path, info, want)
			}
		}},
		{name: "List does not follow links below the directory", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir", "write", "dir/f", "", "symlink", "dir", "link", "symlink", "..", "dir/up")
			expect(t, "list", s.list(t, ".", all), "dir dir/f dir/up link")
		}},
		{name: "List follows a link that is the directory itself", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir", "write", "dir/f", "", "symlink", "dir", "link")
			expect(t, "list", s.list(t, "link", all), "f")
		}},
	}
}

func listRefusalRules() []rule {
	all := primitives.ListOptions{Depth: -1}
	return []rule{
		{name: "List of a missing directory is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			for _, opts := range []primitives.ListOptions{{}, all, {Pattern: "**"}} {
				_, err := s.List(t.Context(), s.in("nothing"), opts)
				expectError(t, "List", err, fs.ErrNotExist)
			}
		}},
		{name: "List of a file is ErrNotDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			_, err := s.List(t.Context(), s.in("f"), primitives.ListOptions{})
			expectError(t, "List", err, primitives.ErrNotDirectory)
		}},
		{name: "List of an unreadable directory is fs.ErrPermission", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir", "write", "dir/f", "", "chmod", "000", "dir")
			defer s.probed(t, "chmod", "755", "dir")
			readable := s.probed(t, "may-read", "dir") == "true"
			infos, err := s.List(t.Context(), s.in("dir"), all)
			if readable {
				expect(t, "entries", len(infos), 1)
				return
			}
			expectError(t, "List", err, fs.ErrPermission)
		}},
		{name: "List shows an unreadable directory below without its entries", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir", "write", "dir/f", "", "write", "g", "", "chmod", "000", "dir")
			defer s.probed(t, "chmod", "755", "dir")
			want := "dir g"
			if s.probed(t, "may-read", "dir") == "true" {
				want = "dir dir/f g"
			}
			expect(t, "list", s.list(t, ".", all), want)
			_, err := s.List(t.Context(), s.in("."), primitives.ListOptions{Depth: -1, Strict: true})
			if want == "dir g" {
				expectError(t, "a strict List", err, fs.ErrPermission)
			} else {
				expect(t, "error of a strict List", err, nil)
			}
		}},
		{name: "List of ten thousand files is complete", check: func(t testingT, s *sandbox) {
			s.probed(t, "many", "10000", "dir")
			got := strings.Split(s.list(t, "dir", primitives.ListOptions{}), " ")
			expect(t, "entries", len(got), 10_000)
			expect(t, "last", got[len(got)-1], "f09999")
		}},
		{name: "List with a limit returns what fits and ErrLimit", check: func(t testingT, s *sandbox) {
			buildTree(t, s)
			infos, err := s.List(t.Context(), s.dir, primitives.ListOptions{Depth: -1, Limit: 3})
			expectError(t, "List", err, primitives.ErrLimit)
			expect(t, "entries", len(infos), 3)
			infos, err = s.List(t.Context(), s.dir, primitives.ListOptions{Depth: -1, Limit: 8})
			expect(t, "error when all fit", err, nil)
			expect(t, "entries when all fit", len(infos), 8)
		}},
	}
}

func patternRules() []rule {
	var rules []rule
	for _, c := range []struct {
		name, want string
		opts       primitives.ListOptions
	}{
		{"List with ** matches at any depth", "a/b/c/deep.go a/b/mid.go z.go", primitives.ListOptions{Pattern: "**/*.go"}},
		{"List with a plain pattern matches the direct children", "z.go", primitives.ListOptions{Pattern: "*.go"}},
		{"List with a slash in the pattern looks as deep as needed", "a/b/mid.go", primitives.ListOptions{Pattern: "a/*/*.go"}},
		{"List with braces matches alternatives", "a/b/mid.go a/top.txt", primitives.ListOptions{Pattern: "a/**/{mid.go,*.txt}"}},
		{"List with a pattern and a depth keeps to the depth", "a/b/mid.go z.go", primitives.ListOptions{Pattern: "**/*.go", Depth: 3}},
		{"List with a pattern that matches nothing is empty", "", primitives.ListOptions{Pattern: "*.rs"}},
	} {
		rules = append(rules, rule{name: c.name, check: func(t testingT, s *sandbox) {
			buildTree(t, s)
			expect(t, "list", s.list(t, ".", c.opts), c.want)
		}})
	}
	return append(rules, rule{name: "List with a bad pattern is fs.ErrInvalid", check: func(t testingT, s *sandbox) {
		for _, pattern := range []string{"[", "a/[b", "{a"} {
			_, err := s.List(t.Context(), s.dir, primitives.ListOptions{Pattern: pattern})
			expectError(t, pattern, err, fs.ErrInvalid)
		}
	}})
}
