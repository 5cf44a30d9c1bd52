package primitivestest

import (
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

// batchRules returns the rules about many files at once, each as if it were written alone.
func batchRules() []rule {
	return []rule{
		{name: "a batch writes every file and tells of each", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "dir")
			errs, err := primitives.WriteFiles(t.Context(), s.EnvironmentPrimitive, []primitives.File{
				{Path: s.in("a"), Content: []byte("a")},
				{Path: s.in("dir"), Content: []byte("not a file")},
				{Path: s.in("sub/b"), Content: []byte("b"), Mode: 0o755},
				{Path: "../../escape", Content: []byte("no")},
			})
			if err != nil || len(errs) != 4 {
				t.Fatalf("WriteFiles: %d errors and %v", len(errs), err)
			}
			expect(t, "error of a", errs[0], nil)
			expectError(t, "directory", errs[1], primitives.ErrIsDirectory)
			expect(t, "error of sub/b", errs[2], nil)
			expectError(t, "escape", errs[3], primitives.ErrPathEscape)
			expect(t, "content", s.read(t, "a")+s.read(t, "sub/b"), "ab")
			expect(t, "mode", s.lstat(t, "sub/b").Mode, 0o755)
		}},
		{name: "an empty batch is no error", check: func(t testingT, s *sandbox) {
			errs, err := primitives.WriteFiles(t.Context(), s.EnvironmentPrimitive, nil)
			expect(t, "error", err, nil)
			expect(t, "errors", len(errs), 0)
		}},
		{name: "a batch fills new folders as single writes would", check: func(t testingT, s *sandbox) {
			s.writeBatch(t,
				primitives.File{Path: "n/a", Content: []byte("old")},
				primitives.File{Path: "n/sub/deep/b", Content: []byte("b"), Mode: 0o755},
				primitives.File{Path: "n/a", Content: []byte("again")},
				primitives.File{Path: "n/../top", Content: []byte("top")},
				primitives.File{Path: "n/sub/c", Content: []byte("c"), Mode: 0o600},
				primitives.File{Path: "m/a", Content: []byte("m")},
				primitives.File{Path: "n/d", Content: []byte("d")},
			)
			expect(t, "files", s.names(t, "."), "m n top")
			expect(t, "files of n", s.names(t, "n"), "a d sub")
			expect(t, "files of sub", s.names(t, "n/sub"), "c deep")
			expect(t, "content", s.read(t, "n/a")+s.read(t, "n/sub/deep/b")+s.read(t, "n/sub/c")+s.read(t, "n/d")+s.read(t, "m/a")+s.read(t, "top"),
				"againbcdmtop")
			expect(t, "mode of a file", s.lstat(t, "n/sub/deep/b").Mode, 0o755)
			expect(t, "mode of another", s.lstat(t, "n/sub/c").Mode, 0o600)
			expect(t, "mode of a folder", s.lstat(t, "n/sub/deep").Mode, 0o755)
		}},
		{name: "a batch that uses the name of a file for a folder, or of a folder for a file, says so", check: func(t testingT, s *sandbox) {
			errs := s.writeSome(t,
				primitives.File{Path: "n/f", Content: []byte("f")},
				primitives.File{Path: "n/f/below", Content: []byte("no")},
				primitives.File{Path: "m/a", Content: []byte("a")},
				primitives.File{Path: "m/", Content: []byte("no")},
				primitives.File{Path: "top", Content: []byte("t")},
				primitives.File{Path: "m", Content: []byte("no")},
				primitives.File{Path: "o/p/", Content: []byte("no")},
				primitives.File{Path: "o/p", Content: []byte("p")},
			)
			expectError(t, "below a file", errs[1], primitives.ErrNotDirectory)
			for _, i := range []int{3, 5, 6} {
				expectError(t, "a folder", errs[i], primitives.ErrIsDirectory)
			}
			expect(t, "content", s.read(t, "n/f")+s.read(t, "m/a")+s.read(t, "top")+s.read(t, "o/p"), "fatp")
			expect(t, "files", s.names(t, ".")+" / "+s.names(t, "n")+" / "+s.names(t, "m"), "m n o top / f / a")
		}},
		{name: "a batch leads through links to what it makes itself", check: func(t testingT, s *sandbox) {
			s.probed(t, "symlink", "n", s.abs("to-folder"), "symlink", "n/target", s.abs("to-file"))
			s.writeBatch(t,
				primitives.File{Path: "n/a", Content: []byte("a")},
				primitives.File{Path: "to-folder/b", Content: []byte("b")},
				primitives.File{Path: "to-file", Content: []byte("t")},
				primitives.File{Path: "n/c", Content: []byte("c")},
			)
			expect(t, "files of n", s.names(t, "n"), "a b c target")
			expect(t, "content", s.read(t, "n/a")+s.read(t, "n/b")+s.read(t, "n/c")+s.read(t, "n/target"), "abct")
		}},
	}
}

// writeSome writes files of the case and returns their errors.
func (s *sandbox) writeSome(t testingT, files ...primitives.File) []error {
	t.Helper()
	for i := range files {
		slash := ""
		if strings.HasSuffix(files[i].Path, "/") {
			slash = "/" // s.in would drop it
		}
		files[i].Path = s.dir + "/" + strings.TrimSuffix(files[i].Path, "/") + slash
	}
	errs, err := primitives.WriteFiles(t.Context(), s.EnvironmentPrimitive, files)
	if err != nil || len(errs) != len(files) {
		t.Fatalf("WriteFiles: %d errors for %d files and %v", len(errs), len(files), err)
	}
	return errs
}

// writeBatch writes files of the case and expects success.
func (s *sandbox) writeBatch(t testingT, files ...primitives.File) {
	t.Helper()
	for i, err := range s.writeSome(t, files...) {
		expect(t, "error of "+files[i].Path, err, nil)
	}
}
