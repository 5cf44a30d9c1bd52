package primitivestest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// archiveRule returns a rule that expects errors.ErrUnsupported if the sandbox cannot pack.
func archiveRule(name string, check func(t testingT, s *sandbox)) rule {
	return rule{name: name, check: func(t testingT, s *sandbox) {
		r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.dir, primitives.PackOptions{})
		if errors.Is(err, errors.ErrUnsupported) {
			err = primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.dir, bytes.NewReader(nil))
			expectError(t, "Unpack", err, errors.ErrUnsupported)
			return
		}
		if err != nil {
			t.Fatalf("Pack: %v", err)
		}
		expect(t, "error of Close", r.Close(), nil)
		check(t, s)
	}}
}

// packed packs a folder of the case and returns its entries, and the contents of its regular
// files.
func (s *sandbox) packed(t testingT, name string, opts primitives.PackOptions) (headers []*tar.Header, contents map[string]string) {
	t.Helper()
	r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.in(name), opts)
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	contents = map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("reading the archive: %v", err)
		}
		h.Name = strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Name == "" || h.Name == "." {
			continue // the directory itself
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatalf("reading the archive: %v", err)
		}
		headers = append(headers, h)
		contents[h.Name] = string(b)
	}
	expect(t, "error of Close", r.Close(), nil)
	return headers, contents
}

// packedNames packs a folder and returns the names of the entries.
func (s *sandbox) packedNames(t testingT, name string, opts primitives.PackOptions) string {
	t.Helper()
	headers, _ := s.packed(t, name, opts)
	names := make([]string, len(headers))
	for i, h := range headers {
		names[i] = h.Name
	}
	return strings.Join(names, " ")
}

// entry is one entry of an archive that a case creates.
type entry struct {
	name, content, link string
	kind                byte
	mode                int64
	records             map[string]string // of PAX
}

func archive(t testingT, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link,
			Size: int64(len(e.content)), ModTime: time.Unix(1_700_000_000, 0), PAXRecords: e.records,
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		err := w.WriteHeader(h)
		if err == nil {
			_, err = io.WriteString(w, e.content)
		}
		if err != nil {
			t.Fatalf("making an archive: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("making an archive: %v", err)
	}
	return buf.Bytes()
}

// sparseArchive returns an archive of a file f with one byte of data between two holes of 100,000 bytes, in the PAX format
// 1.0 of GNU tar. A tar.Writer does not write its records, so they get their names afterwards.
func sparseArchive(t testingT) []byte {
	t.Helper()
	const list = "1\n100000\n1\n"
	content := list + strings.Repeat("\x00", 512-len(list)) + "x"
	records := map[string]string{"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.realsize": "200001"}
	made := archive(t, entry{name: "f", content: content, kind: tar.TypeReg, records: records})
	return bytes.ReplaceAll(made, []byte("XXX.sparse."), []byte("GNU.sparse."))
}

func (s *sandbox) unpack(t testingT, name string, entries ...entry) error {
	t.Helper()
	return primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.in(name), bytes.NewReader(archive(t, entries...)))
}

func archiveRules() []rule { return concat(packRules(), unpackRules(), hostileArchiveRules()) }

func packRules() []rule { return concat(packContentRules(), packChosenRules(), packEndRules()) }

func packContentRules() []rule {
	return []rule{
		archiveRule("Pack holds files, directories and links with their permission, sorted", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d/sub", "write", "d/sub/f", "one", "chmod", "751", "d/sub/f", "write", "d/b", "two", "symlink", "sub/f", "d/link")
			headers, contents := s.packed(t, "d", primitives.PackOptions{})
			var got []string
			for _, h := range headers {
				got = append(got, fmt.Sprintf("%c %s %o %s", h.Typeflag, h.Name, h.FileInfo().Mode().Perm(), h.Linkname))
				if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
					t.Errorf("%s has an owner", h.Name)
				}
			}
			expect(t, "entries", strings.Join(got, ", "), "0 b 644 , 2 link 777 sub/f, 5 sub 755 , 0 sub/f 751 ")
			expect(t, "contents", contents["b"]+" "+contents["sub/f"], "two one")
		}),
		archiveRule("Pack keeps the modification time", func(t testingT, s *sandbox) {
			s.write(t, "d/f", "x")
			headers, _ := s.packed(t, "d", primitives.PackOptions{})
			if len(headers) != 1 || headers[0].ModTime.Unix() != s.stat(t, "d/f").ModTime.Unix() {
				t.Errorf("headers %+v, want one with time %v", headers, s.stat(t, "d/f").ModTime)
			}
		}),
		archiveRule("Pack leaves out FIFOs and sockets", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d", "fifo", "d/pipe", "write", "d/f", "x", "chdir", "d", "socket", "s")
			expect(t, "entries", s.packedNames(t, "d", primitives.PackOptions{}), "f")
		}),
		archiveRule("Pack leaves out what is ignored, and all below it", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d/node_modules/x", "write", "d/node_modules/x/f", "", "mkdir", "d/src",
				"write", "d/src/a.go", "", "write", "d/src/a.log", "", "write", "d/b.log", "")
			expect(t, "entries", s.packedNames(t, "d", primitives.PackOptions{Ignore: []string{"node_modules", "*.log"}}), "src src/a.go")
		}),
	}
}

func packChosenRules() []rule {
	return []rule{
		archiveRule("Pack of chosen paths holds just these, in their order, without missing ones", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d/sub", "write", "d/sub/f", "one", "write", "d/b", "two", "symlink", "sub/f", "d/link", "write", "outside", "x", "symlink", "../outside", "d/sub/out")
			chosen := primitives.PackOptions{Only: []string{"sub/f", "nothing", "sub", "b/f", "link", "sub/out", "b"}}
			headers, contents := s.packed(t, "d", chosen)
			var got []string
			for _, h := range headers {
				got = append(got, fmt.Sprintf("%c %s %s", h.Typeflag, h.Name, h.Linkname))
			}
			expect(t, "entries", strings.Join(got, ", "), "0 sub/f , 2 link sub/f, 2 sub/out ../outside, 0 b ")
			expect(t, "contents", contents["sub/f"]+" "+contents["b"], "one two")
			expect(t, "entries without a path", s.packedNames(t, "d", primitives.PackOptions{Only: []string{}}), "")
			s.probed(t, "symlink", "..", "d/up")
			for _, name := range []string{"../outside", path.Join(s.Paths().Workspace, s.in("outside")), "up/outside"} {
				r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.in("d"), primitives.PackOptions{Only: []string{name}})
				if err == nil {
					_, err = io.Copy(io.Discard, r)
					err = errors.Join(err, r.Close())
				}
				expectError(t, name+", which leads out", err, primitives.ErrPathEscape)
			}
		}),
	}
}

func packEndRules() []rule {
	return []rule{
		archiveRule("Pack of an empty directory is an empty archive", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d")
			expect(t, "entries", s.packedNames(t, "d", primitives.PackOptions{}), "")
		}),
		archiveRule("Pack of a missing directory is fs.ErrNotExist, of a file ErrNotDirectory", func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			for name, want := range map[string]error{"nothing": fs.ErrNotExist, "f": primitives.ErrNotDirectory} {
				r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.in(name), primitives.PackOptions{})
				if err == nil {
					_, err = io.Copy(io.Discard, r)
					err = errors.Join(err, r.Close())
				}
				expectError(t, name, err, want)
			}
		}),
		archiveRule("Pack that is cancelled is an error, not a short archive", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d", "sparse", "268435456", "d/f")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := primitives.Pack(ctx, s.EnvironmentPrimitive, s.in("d"), primitives.PackOptions{})
			if err != nil {
				t.Fatalf("Pack: %v", err)
			}
			if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
				t.Fatalf("reading the beginning: %v", err)
			}
			cancel()
			s.within(t, "the error", func() error {
				if _, err := io.Copy(io.Discard, r); err == nil {
					return errors.New("the archive ended without an error")
				}
				return nil
			})
			expect(t, "error of Close", r.Close(), nil)
		}),
		archiveRule("closing an archive early is no error", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d", "sparse", "268435456", "d/f")
			r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.in("d"), primitives.PackOptions{})
			if err != nil {
				t.Fatalf("Pack: %v", err)
			}
			if _, err := io.CopyN(io.Discard, r, 1000); err != nil {
				t.Fatalf("reading the beginning: %v", err)
			}
			expect(t, "error of Close", r.Close(), nil)
		}),
		archiveRule("what Pack packs, Unpack unpacks", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d/sub/empty", "write", "d/sub/f", "one", "chmod", "700", "d/sub/f", "symlink", "f", "d/sub/link", "symlink", "/usr/bin/python3", "d/sub/python", "symlink", "../../../..", "d/up", "many", "500", "d/many")
			r, err := primitives.Pack(t.Context(), s.EnvironmentPrimitive, s.in("d"), primitives.PackOptions{})
			if err != nil {
				t.Fatalf("Pack: %v", err)
			}
			expect(t, "error of Unpack", primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.in("copy"), r), nil)
			expect(t, "error of Close", r.Close(), nil)
			all := primitives.ListOptions{Depth: -1}
			expect(t, "list", s.list(t, "copy", all), s.list(t, "d", all))
			expect(t, "content", s.read(t, "copy/sub/link"), "one")
			expect(t, "targets", s.stat(t, "copy/sub/python").Target+" "+s.stat(t, "copy/up").Target, "/usr/bin/python3 ../../../..")
			expect(t, "mode", s.lstat(t, "copy/sub/f").Mode, 0o700)
		}),
	}
}

func unpackRules() []rule {
	return []rule{
		archiveRule("Unpack makes the directory and missing parents", func(t testingT, s *sandbox) {
			err := s.unpack(t, "new/dir", entry{name: "a/b/f", content: "x", kind: tar.TypeReg, mode: 0o750})
			expect(t, "error", err, nil)
			expect(t, "content", s.read(t, "new/dir/a/b/f"), "x")
			expect(t, "mode", s.lstat(t, "new/dir/a/b/f").Mode, 0o750)
		}),
		archiveRule("Unpack replaces existing files", func(t testingT, s *sandbox) {
			s.write(t, "d/f", "old")
			expect(t, "error", s.unpack(t, "d", entry{name: "f", content: "new", kind: tar.TypeReg}), nil)
			expect(t, "content", s.read(t, "d/f"), "new")
		}),
		archiveRule("Unpack takes no set-user-id, set-group-id and sticky bits over", func(t testingT, s *sandbox) {
			err := s.unpack(t, "d", entry{name: "f", kind: tar.TypeReg, mode: 0o6755}, entry{name: "dir/", kind: tar.TypeDir, mode: 0o1755})
			expect(t, "error", err, nil)
			expect(t, "mode of the file", s.lstat(t, "d/f").Mode, 0o755)
			expect(t, "mode of the directory", s.lstat(t, "d/dir").Mode, 0o755)
		}),
		archiveRule("Unpack makes hard links copies", func(t testingT, s *sandbox) {
			err := s.unpack(t, "d", entry{name: "f", content: "x", kind: tar.TypeReg}, entry{name: "g", link: "f", kind: tar.TypeLink})
			expect(t, "error", err, nil)
			expect(t, "content", s.read(t, "d/g"), "x")
			expect(t, "links", s.lstat(t, "d/g").Links, 1)
		}),
		archiveRule("Unpack takes files without their holes, as GNU tar packs them", func(t testingT, s *sandbox) {
			err := primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.in("d"), bytes.NewReader(sparseArchive(t)))
			expect(t, "error", err, nil)
			zeros := strings.Repeat("\x00", 100_000)
			expect(t, "content is whole", s.read(t, "d/f") == zeros+"x"+zeros, true)
		}),
		archiveRule("Unpack keeps the targets of links, wherever they lead", func(t testingT, s *sandbox) {
			targets := map[string]string{"in": "../a/f", "up": "../../../../x", "absolute": "/etc/passwd", "dangling": "no/../where", "self": "self"}
			entries := []entry{{name: "a/f", content: "x", kind: tar.TypeReg}}
			for name, target := range targets {
				entries = append(entries, entry{name: "b/" + name, link: target, kind: tar.TypeSymlink, mode: 0o777})
			}
			expect(t, "error", s.unpack(t, "d", entries...), nil)
			expect(t, "error of unpacking again", s.unpack(t, "d", entries...), nil)
			for name, target := range targets {
				expect(t, "target of "+name, s.stat(t, "d/b/"+name).Target, target)
			}
		}),
		archiveRule("Unpack keeps what came before an error", func(t testingT, s *sandbox) {
			err := s.unpack(t, "d", entry{name: "f", content: "x", kind: tar.TypeReg}, entry{name: "../g", kind: tar.TypeReg})
			expectError(t, "Unpack", err, primitives.ErrPathEscape)
			expect(t, "content", s.read(t, "d/f"), "x")
		}),
		archiveRule("Unpack of half an archive is an error", func(t testingT, s *sandbox) {
			whole := archive(t, entry{name: "f", content: alphabet(100_000), kind: tar.TypeReg})
			err := primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.in("d"), bytes.NewReader(whole[:50_000]))
			expectError(t, "Unpack", err, io.ErrUnexpectedEOF)
		}),
		archiveRule("Unpack whose source fails is the source's error", func(t testingT, s *sandbox) {
			whole := archive(t, entry{name: "f", content: alphabet(100_000), kind: tar.TypeReg})
			r := io.MultiReader(bytes.NewReader(whole[:50_000]), failingReader{})
			expectError(t, "Unpack", primitives.Unpack(t.Context(), s.EnvironmentPrimitive, s.in("d"), r), errSource)
		}),
	}
}

// hostileArchiveRules returns the rules that nothing is written outside the directory.
func hostileArchiveRules() []rule {
	var rules []rule
	for _, c := range []struct {
		what  string
		entry entry
		want  error
	}{
		{"an absolute path", entry{name: "/pt-evil", kind: tar.TypeReg}, primitives.ErrPathEscape},
		{"a path with ..", entry{name: "a/../../evil", kind: tar.TypeReg}, primitives.ErrPathEscape},
		{"a hard link to a file outside", entry{name: "l", link: "../secret", kind: tar.TypeLink}, primitives.ErrPathEscape},
		{"a FIFO", entry{name: "p", kind: tar.TypeFifo}, primitives.ErrNotRegular},
		{"a device", entry{name: "p", kind: tar.TypeChar}, primitives.ErrNotRegular},
	} {
		rules = append(rules, archiveRule("Unpack refuses "+c.what, func(t testingT, s *sandbox) {
			s.write(t, "secret", "x")
			expectError(t, "Unpack", s.unpack(t, "d", c.entry), c.want)
			expect(t, "a file beside", slices.Contains(strings.Fields(s.names(t, ".")), "evil"), false)
			if _, err := s.Stat(t.Context(), "/pt-evil"); err == nil {
				t.Errorf("/pt-evil was written")
			}
		}))
	}
	return append(rules, []rule{
		archiveRule("Unpack refuses a file below a link that leads out", func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "outside", "mkdir", "d", "symlink", s.abs("outside"), "d/link")
			expectError(t, "Unpack", s.unpack(t, "d", entry{name: "link/evil", kind: tar.TypeReg}), primitives.ErrPathEscape)
			expect(t, "files outside", s.names(t, "outside"), "")
		}),
		archiveRule("Unpack writes nothing through a link of its own archive that leads out", func(t testingT, s *sandbox) {
			s.write(t, "outside/f", "untouched")
			for _, target := range []string{s.abs("outside"), "../outside", "deep/../../outside"} {
				link := entry{name: "link", link: target, kind: tar.TypeSymlink}
				for _, evil := range []entry{
					{name: "link/f", content: "evil", kind: tar.TypeReg},
					{name: "link/evil/", kind: tar.TypeDir},
					{name: "link/", kind: tar.TypeDir, mode: 0o700},
					{name: "link/l", link: "x", kind: tar.TypeSymlink},
					{name: "copy", link: "link/f", kind: tar.TypeLink},
				} {
					deep := entry{name: "deep/", kind: tar.TypeDir, mode: 0o755}
					expectError(t, evil.name+" with "+target, s.unpack(t, "d", deep, link, evil), primitives.ErrPathEscape)
				}
				file := entry{name: "link", content: "mine", kind: tar.TypeReg}
				expect(t, "error of a file in the place of the link", s.unpack(t, "d", link, file), nil)
			}
			expect(t, "outside", s.probed(t, "names", "outside", "show", "outside/f"), "[\"f\"]\nuntouched")
			expect(t, "mode of the folder outside", s.lstat(t, "outside").Mode, 0o755)
		}),
	}...)
}
