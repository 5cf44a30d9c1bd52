package primitivestest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// fileOperation is one method of Files, applied to a path.
type fileOperation struct {
	name string
	do   func(ctx context.Context, f primitives.Files, name string) error
}

func fileOperations() []fileOperation {
	return []fileOperation{
		{"Open", func(ctx context.Context, f primitives.Files, name string) error {
			r, err := f.Open(ctx, name)
			if err != nil {
				return err
			}
			return r.Close()
		}},
		{"WriteFile", func(ctx context.Context, f primitives.Files, name string) error {
			return f.WriteFile(ctx, name, strings.NewReader("escaped"), primitives.WriteOptions{})
		}},
		{"Append", func(ctx context.Context, f primitives.Files, name string) error {
			return f.WriteFile(ctx, name, strings.NewReader("escaped"), primitives.WriteOptions{Append: true})
		}},
		{"Stat", func(ctx context.Context, f primitives.Files, name string) error {
			_, err := f.Stat(ctx, name)
			return err
		}},
		{"List", func(ctx context.Context, f primitives.Files, name string) error {
			_, err := f.List(ctx, name, primitives.ListOptions{})
			return err
		}},
		{"Mkdir", func(ctx context.Context, f primitives.Files, name string) error { return f.Mkdir(ctx, name, 0) }},
		{"Remove", func(ctx context.Context, f primitives.Files, name string) error { return f.Remove(ctx, name, true) }},
		{"Move from", func(ctx context.Context, f primitives.Files, name string) error {
			return f.Move(ctx, name, "pt-moved")
		}},
		{"Move to", func(ctx context.Context, f primitives.Files, name string) error { return f.Move(ctx, moveSource, name) }},
	}
}

// moveSource is what the operation "Move to" moves.
const moveSource = "pt-source"

// pathRules returns the rules that a relative path stays in the workspace.
func pathRules() []rule {
	var rules []rule
	for _, op := range fileOperations() {
		rules = append(rules, rule{name: op.name + " refuses a relative path that leaves the workspace", check: func(t testingT, s *sandbox) {
			outside := path.Join(s.Paths().Home, "outside-"+s.dir)
			s.probed(t, "mkdir", outside, "write", outside+"/f", "untouched")
			up := path.Join("..", path.Base(s.Paths().Home), path.Base(outside))
			s.probed(t, "symlink", outside, "way-out", "write", "../"+moveSource, "")
			for _, name := range []string{"..", "../", up, up + "/f", up + "/new", s.dir + "/../../" + path.Base(s.Paths().Home) + "/" + path.Base(outside), s.in("way-out", "f"), s.in("way-out", "new"), s.in("way-out", "new", "deep"), s.dir + "/missing/../../../x", "missing/../.."} {
				expectError(t, op.name+" "+name, op.do(t.Context(), s.EnvironmentPrimitive, name), primitives.ErrPathEscape)
			}
			expect(t, "outside", s.probed(t, "names", outside, "show", outside+"/f"), "[\"f\"]\nuntouched")
			if _, err := s.Stat(t.Context(), s.in("missing")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a folder on the way out: %v, want %v", err, fs.ErrNotExist)
			}
		}})
	}
	return append(rules, []rule{
		{name: "a path with .. that stays in the workspace is allowed", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			s.probed(t, "mkdir", "a")
			b, err := primitives.ReadFile(t.Context(), s.EnvironmentPrimitive, s.dir+"/a/../f", 0)
			expect(t, "error", err, nil)
			expect(t, "content", string(b), "x")
		}},
		{name: "a link that stays in the workspace is followed", check: func(t testingT, s *sandbox) {
			s.write(t, "real/f", "x")
			s.probed(t, "symlink", "real", "link", "symlink", s.abs("real"), "absolute")
			expect(t, "relative link", s.read(t, "link/f"), "x")
			expect(t, "absolute link", s.read(t, "absolute/f"), "x")
		}},
		{name: "a file that is a link out of the workspace is ErrPathEscape", check: func(t testingT, s *sandbox) {
			outside := path.Join(s.Paths().Home, "file-of-"+s.dir)
			s.probed(t, "write", outside, "untouched", "symlink", outside, "link", "symlink", outside+"-new", "dangling")
			s.openError(t, s.in("link"), primitives.ErrPathEscape)
			expectError(t, "WriteFile", s.put(t, "link", "x", primitives.WriteOptions{}), primitives.ErrPathEscape)
			expectError(t, "WriteFile", s.put(t, "dangling", "x", primitives.WriteOptions{}), primitives.ErrPathEscape)
			expect(t, "target", s.probed(t, "show", outside), "untouched")
			if _, err := s.Stat(t.Context(), outside+"-new"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the target of the dangling link: %v", err)
			}
		}},
		{name: "a link out of the workspace can be seen, moved and removed itself", check: func(t testingT, s *sandbox) {
			s.probed(t, "symlink", "/", "link")
			expect(t, "target", s.stat(t, "link").Target, "/")
			expect(t, "error of Move", s.Move(t.Context(), s.in("link"), s.in("moved")), nil)
			expect(t, "error of Remove", s.Remove(t.Context(), s.in("moved"), true), nil)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "a folder whose name begins like the workspace is outside", check: func(t testingT, s *sandbox) {
			name := "../" + path.Base(s.Paths().Workspace) + "-evil"
			expectError(t, "WriteFile", s.WriteFile(t.Context(), name+"/f", strings.NewReader(""), primitives.WriteOptions{}), primitives.ErrPathEscape)
		}},
		{name: "an absolute path reaches the whole file system", check: func(t testingT, s *sandbox) {
			name := path.Join(s.Paths().Home, "abs-"+s.dir)
			expect(t, "error", s.WriteFile(t.Context(), name, strings.NewReader("x"), primitives.WriteOptions{}), nil)
			b, err := primitives.ReadFile(t.Context(), s.EnvironmentPrimitive, name, 0)
			expect(t, "error", err, nil)
			expect(t, "content", string(b), "x")
			expect(t, "error", s.Remove(t.Context(), name, false), nil)
		}},
		{name: "the empty path is not a file", check: func(t testingT, s *sandbox) {
			if r, err := s.Open(t.Context(), ""); err == nil {
				t.Errorf("Open: no error, close gave %v", r.Close())
			}
			if err := s.WriteFile(t.Context(), "", strings.NewReader("x"), primitives.WriteOptions{}); err == nil {
				t.Errorf("WriteFile: no error")
			}
		}},
		{name: "a NUL in a path is fs.ErrInvalid", check: func(t testingT, s *sandbox) {
			s.probed(t, "write", "../"+moveSource, "")
			for _, op := range fileOperations() {
				expectError(t, op.name, op.do(t.Context(), s.EnvironmentPrimitive, s.in("a\x00b")), fs.ErrInvalid)
			}
		}},
	}...)
}

// nameRules returns the rules that every name that a file system allows works everywhere.
func nameRules() []rule {
	var control []string
	for c := byte(1); c < 0x20; c++ {
		control = append(control, string([]byte{'a', c, 'b'}))
	}
	kinds := []struct {
		what  string
		names []string
	}{
		{"control characters", append(control, "a\x7fb")},
		{"dots", []string{"...", "..a", ".a", "a.", ". .", "a..b"}},
		{"punctuation", []string{"!\"#$%&'()*+,-:;<=>?@[\\]^_`{|}~", "*", "?", "[a]", "{a,b}", "\\", "a\\b", "~", "-rf", "--", "'", "\"", "$HOME", "`id`", "#"}},
		{"blanks around", []string{" a", "a ", " ", "a b", "  "}},
		{"white space around", []string{"\ta", "a\t", "\ra", "a\r", "\na", "a\n", "\va", "a\v", "a\r\nb"}},
		{"dots and tildes around", []string{"~a", "a~", ".a.", "a."}},
		{"UTF-8", []string{"café", "cafe\u0301", "中文", "😀", "\u200b", "\u202e", "ﬁ"}},
		{"percent signs", []string{"test%46.txt", "%2F", "%00", "100%", "a+b"}},
		{"reserved names of other systems", []string{"CON", "nul", "a:b", "C:", "desktop.ini"}},
		{"the greatest length", []string{strings.Repeat("x", 255), strings.Repeat("中", 85)}},
		{"invalid UTF-8", []string{"\xfe", "a\xc3", "\xff\xffb"}},
	}
	var rules []rule
	for _, kind := range kinds {
		rules = append(rules, rule{name: "names with " + kind.what + " can be used", check: func(t testingT, s *sandbox) {
			for _, name := range kind.names {
				s.useName(t, name)
			}
		}})
	}
	return rules
}

// useName performs all operations with one name.
func (s *sandbox) useName(t testingT, name string) {
	t.Helper()
	s.write(t, name, "content")
	expect(t, "content of "+name, s.read(t, name), "content")
	expect(t, "path of "+name, s.stat(t, name).Path, s.in(name))
	expect(t, "list with "+name, s.list(t, ".", primitives.ListOptions{Depth: -1}), name)
	expect(t, "error of Move", s.Move(t.Context(), s.in(name), s.in("dir", name)), nil)
	expect(t, "list below", s.list(t, "dir", primitives.ListOptions{}), name)
	expect(t, "error of Remove", s.Remove(t.Context(), s.in("dir"), true), nil)
	expect(t, "list after", s.list(t, ".", primitives.ListOptions{}), "")
}
