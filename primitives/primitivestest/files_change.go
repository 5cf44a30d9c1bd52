package primitivestest

import (
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// changeRules returns the rules about Mkdir, Remove and Move.
func changeRules() []rule { return concat(mkdirRules(), removeRules(), moveRules()) }

func mkdirRules() []rule {
	return []rule{
		{name: "Mkdir makes a directory and its parents with mode 0755", check: func(t testingT, s *sandbox) {
			expect(t, "error", s.Mkdir(t.Context(), s.in("a/b/c"), 0), nil)
			expect(t, "mode", s.lstat(t, "a/b/c").Mode, 0o755)
			expect(t, "mode of the parent", s.lstat(t, "a").Mode, 0o755)
		}},
		{name: "Mkdir gives the mode that was asked for", check: func(t testingT, s *sandbox) {
			expect(t, "error", s.Mkdir(t.Context(), s.in("a"), 0o700), nil)
			expect(t, "error", s.Mkdir(t.Context(), s.in("b"), 0o777), nil)
			expect(t, "mode", s.lstat(t, "a").Mode, 0o700)
			expect(t, "mode", s.lstat(t, "b").Mode, 0o777)
		}},
		{name: "Mkdir leaves an existing directory as it is", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "chmod", "711", "a", "write", "a/f", "")
			expect(t, "error", s.Mkdir(t.Context(), s.in("a"), 0o755), nil)
			expect(t, "mode", s.lstat(t, "a").Mode, 0o711)
			expect(t, "files", s.names(t, "a"), "f")
		}},
		{name: "Mkdir where a file is, or below it, is ErrNotDirectory or fs.ErrExist", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			err := s.Mkdir(t.Context(), s.in("f"), 0)
			if !isAny(err, primitives.ErrNotDirectory, fs.ErrExist) {
				t.Errorf("Mkdir on a file: %v", err)
			}
			expectError(t, "below a file", s.Mkdir(t.Context(), s.in("f/a/b"), 0), primitives.ErrNotDirectory)
			expect(t, "content", s.read(t, "f"), "x")
		}},
	}
}

func removeRules() []rule {
	return []rule{
		{name: "Remove removes a file", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			expect(t, "error", s.Remove(t.Context(), s.in("f"), false), nil)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "Remove removes an empty directory", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a")
			expect(t, "error", s.Remove(t.Context(), s.in("a"), false), nil)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "Remove of a full directory without recursive is ErrNotEmpty", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "write", "a/f", "x")
			expectError(t, "Remove", s.Remove(t.Context(), s.in("a"), false), primitives.ErrNotEmpty)
			expect(t, "files", s.names(t, "a"), "f")
		}},
		{name: "Remove with recursive removes a tree", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/b/c", "write", "a/b/f", "x", "fifo", "a/pipe", "symlink", "nowhere", "a/link")
			expect(t, "error", s.Remove(t.Context(), s.in("a"), true), nil)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "Remove with recursive removes directories that cannot be read", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/closed", "chmod", "000", "a/closed")
			expect(t, "error", s.Remove(t.Context(), s.in("a"), true), nil)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "Remove removes a link, never its target", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "write", "a/f", "x", "symlink", "a", "dirlink", "symlink", "a/f", "filelink", "symlink", "nowhere", "dangling")
			for _, link := range []string{"filelink", "dangling"} {
				expect(t, "error", s.Remove(t.Context(), s.in(link), false), nil)
			}
			expect(t, "error", s.Remove(t.Context(), s.in("dirlink"), true), nil)
			expect(t, "files", s.names(t, ".")+"/"+s.names(t, "a"), "a/f")
		}},
		{name: "Remove with recursive does not go through links", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "keep", "write", "keep/f", "x", "mkdir", "a", "symlink", "../keep", "a/link")
			expect(t, "error", s.Remove(t.Context(), s.in("a"), true), nil)
			expect(t, "kept", s.names(t, "keep"), "f")
		}},
		{name: "Remove of a missing path is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			expectError(t, "Remove", s.Remove(t.Context(), s.in("nothing"), false), fs.ErrNotExist)
			expectError(t, "Remove recursive", s.Remove(t.Context(), s.in("nothing"), true), fs.ErrNotExist)
		}},
		{name: "the folders of the sandbox cannot be removed", own: true, check: func(t testingT, s *sandbox) {
			for _, dir := range append(s.Paths().All(), ".", "") {
				for _, recursive := range []bool{false, true} {
					expectError(t, "Remove "+dir, s.Remove(t.Context(), dir, recursive), fs.ErrInvalid)
				}
			}
			expect(t, "still there", s.stat(t, ".").IsDir(), true)
		}},
	}
}

func moveRules() []rule {
	return []rule{
		{name: "Move renames a file and makes missing parents", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			s.probed(t, "chmod", "751", "f")
			expect(t, "error", s.Move(t.Context(), s.in("f"), s.in("new/dir/g")), nil)
			expect(t, "content", s.read(t, "new/dir/g"), "x")
			expect(t, "mode", s.lstat(t, "new/dir/g").Mode, 0o751)
			expect(t, "files", s.names(t, "."), "new")
		}},
		{name: "Move replaces an existing file", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "new")
			s.write(t, "g", "old")
			expect(t, "error", s.Move(t.Context(), s.in("f"), s.in("g")), nil)
			expect(t, "content", s.read(t, "g"), "new")
			expect(t, "files", s.names(t, "."), "g")
		}},
		{name: "Move onto a directory is ErrIsDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			s.probed(t, "mkdir", "empty", "mkdir", "from")
			expectError(t, "file onto directory", s.Move(t.Context(), s.in("f"), s.in("empty")), primitives.ErrIsDirectory)
			expectError(t, "directory onto directory", s.Move(t.Context(), s.in("from"), s.in("empty")), primitives.ErrIsDirectory)
			expect(t, "files", s.names(t, "."), "empty f from")
		}},
		{name: "Move renames a directory with all that is in it", check: func(t testingT, s *sandbox) {
			s.write(t, "a/b/f", "x")
			expect(t, "error", s.Move(t.Context(), s.in("a"), s.in("z")), nil)
			expect(t, "content", s.read(t, "z/b/f"), "x")
		}},
		{name: "Move of a directory onto a file is refused", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "write", "f", "x")
			if err := s.Move(t.Context(), s.in("a"), s.in("f")); !isAny(err, primitives.ErrNotDirectory, fs.ErrExist) {
				t.Errorf("Move: %v, want ErrNotDirectory", err)
			}
			expect(t, "content", s.read(t, "f"), "x")
		}},
		{name: "Move of a directory into itself is fs.ErrInvalid", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a")
			expectError(t, "Move", s.Move(t.Context(), s.in("a"), s.in("a/b")), fs.ErrInvalid)
			expectError(t, "Move deeper", s.Move(t.Context(), s.in("a"), s.in("a/b/c")), fs.ErrInvalid)
			expect(t, "files", s.names(t, ".")+s.names(t, "a"), "a")
		}},
		{name: "Move of a missing path is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			expectError(t, "Move", s.Move(t.Context(), s.in("nothing"), s.in("b")), fs.ErrNotExist)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "Move renames a link, not its target", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			s.probed(t, "symlink", "f", "link")
			expect(t, "error", s.Move(t.Context(), s.in("link"), s.in("moved")), nil)
			expect(t, "target", s.stat(t, "moved").Target, "f")
			expect(t, "content", s.read(t, "f"), "x")
		}},
		{name: "Move replaces a link, not its target", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "target")
			s.write(t, "g", "new")
			s.probed(t, "symlink", "f", "link")
			expect(t, "error", s.Move(t.Context(), s.in("g"), s.in("link")), nil)
			expect(t, "content", s.read(t, "link")+" "+s.read(t, "f"), "new target")
		}},
		{name: "Move onto itself changes nothing", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			expect(t, "error", s.Move(t.Context(), s.in("f"), s.in("f")), nil)
			expect(t, "content", s.read(t, "f"), "x")
		}},
	}
}
