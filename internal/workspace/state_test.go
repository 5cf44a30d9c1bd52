package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// sandbox is a local sandbox that records reads.
type sandbox struct {
	*local.Sandbox
	packed, opens []string
}

func (s *sandbox) Files() primitives.Files { return s }

func (s *sandbox) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	s.opens = append(s.opens, name)
	return s.Sandbox.Open(ctx, name)
}

func (s *sandbox) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	s.packed = append(s.packed, opts.Only...)
	return primitives.Pack(ctx, s.Sandbox, ".", opts)
}

// path returns the path on this machine of a file of the workspace.
func (s *sandbox) path(name string) string { return filepath.Join(s.Paths().Workspace, name) }

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	s, err := local.New(t.Context(), local.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.Terminate(context.Background()); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &sandbox{Sandbox: s}
}

// memory is a store of one session that counts the stored blobs.
type memory struct {
	store.Store
	puts int
}

func newMemory(t *testing.T) *memory {
	t.Helper()
	m := &memory{Store: store.NewMemory()}
	if err := m.Create(t.Context(), store.Record{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *memory) PutBlobs(ctx context.Context, contents iter.Seq2[io.Reader, error]) ([]Digest, error) {
	digests, err := m.Store.PutBlobs(ctx, "s", contents)
	m.puts += len(digests)
	same := make([]Digest, len(digests))
	for i, d := range digests {
		same[i] = Digest(d)
	}
	return same, err
}

func (m *memory) Blob(ctx context.Context, d Digest) (io.ReadCloser, error) {
	return m.Store.Blob(ctx, "s", store.Digest(d))
}

// write writes files with an old modification time, and the empty file newest with the current
// time.
func (s *sandbox) write(t *testing.T, content string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Dir(s.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(s.path(name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.path("newest"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, x *Index, s *sandbox, m *memory) State {
	t.Helper()
	s.packed, s.opens, m.puts = nil, nil, 0
	st, err := x.Take(t.Context(), s, m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// unpacked unpacks a state into a new sandbox, and returns it with the paths, modes, times and
// contents of its files.
func unpacked(t *testing.T, m *memory, root Digest) (*sandbox, []string) {
	t.Helper()
	s := newSandbox(t)
	var b bytes.Buffer
	if err := Pack(t.Context(), m, root, nil, &b); err != nil {
		t.Fatal(err)
	}
	if err := primitives.Unpack(t.Context(), s, ".", &b); err != nil {
		t.Fatal(err)
	}
	return s, contents(t, s)
}

func contents(t *testing.T, s *sandbox) []string {
	t.Helper()
	infos, err := s.List(t.Context(), ".", primitives.ListOptions{Depth: -1})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, i := range infos {
		line := fmt.Sprintf("%s %v", i.Path, i.Mode)
		switch {
		case i.Target != "":
			line += " -> " + i.Target
		case i.Mode.IsRegular():
			data, err := os.ReadFile(s.path(i.Path))
			if err != nil {
				t.Fatal(err)
			}
			line += fmt.Sprintf(" %d %q", i.ModTime.UnixNano(), data)
		}
		all = append(all, line)
	}
	return all
}

// manyFiles returns the names of some files.
func manyFiles() []string {
	var names []string
	for i := range 48 {
		names = append(names, fmt.Sprintf("many/%d/f", i))
	}
	return names
}

func TestAStateComesBackWhole(t *testing.T) {
	for name, files := range map[string][]string{"few files": nil, "many files": manyFiles()} {
		t.Run(name, func(t *testing.T) {
			s, m := newSandbox(t), newMemory(t)
			s.write(t, "content", append(files, "a", "dir/sub/b", "dir.txt", "with space\nand line", "not utf-8 \xff")...)
			for _, err := range []error{
				os.Symlink("../out of here", s.path("dir/link")), os.Mkdir(s.path("empty"), 0o700),
				os.Chmod(s.path("a"), 0o755), os.WriteFile(s.path("nothing"), nil, 0o600),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			st := take(t, new(Index), s, m)
			_, got := unpacked(t, m, st.Root)
			if want := contents(t, s); !slices.Equal(got, want) {
				t.Errorf("unpacked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if st.Files != len(files)+7 || st.Bytes != int64(len("content")*(len(files)+5)) || len(st.Unreadable) != 0 {
				t.Errorf("state %+v", st)
			}
		})
	}
}

func TestOnlyWhatHasChangedIsRead(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", append(manyFiles(), "a", "dir/b")...)
	x := new(Index)
	first := take(t, x, s, m)
	if len(s.packed) != first.Files || len(s.opens) != 0 {
		t.Errorf("the first one packed %q and opened %q", s.packed, s.opens)
	}
	same := take(t, x, s, m)
	if len(s.packed)+len(s.opens) != 0 || m.puts != 0 || same.Root != first.Root || same.Read != 0 {
		t.Errorf("without a change: packed %q, opened %q, put %d blobs, %+v", s.packed, s.opens, m.puts, same)
	}

	s.write(t, "changed", "dir/b")
	changed := take(t, x, s, m)
	if !slices.Equal(s.packed, []string{"dir/b", "newest"}) || len(s.opens) != 0 || changed.Read != 2 {
		t.Errorf("with a change: packed %q, opened %q, %+v", s.packed, s.opens, changed)
	}
	if m.puts != 3 { // dir/b, the listings of dir and of the workspace
		t.Errorf("with a change %d blobs were put, want 3", m.puts)
	}
	s.write(t, "changed", "a")
	if take(t, x, s, m); m.puts != 1 {
		t.Errorf("%d blobs were put for a content that the state before has, want a listing", m.puts)
	}
}

func TestAFileWhoseSizeAndTimeStayIsReadAgain(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "one", "a")
	x := new(Index)
	first := take(t, x, s, m)
	info, err := os.Stat(s.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path("a"), []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(s.path("a"), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if second := take(t, x, s, m); second.Root == first.Root {
		t.Error("the change was not noticed")
	}
}

func TestCompareFindsWhatDiffers(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "same", "gone", "changed", "mode", "dir/gone", "dir/same", "touched", "file to folder", "was/folder")
	x := new(Index)
	first := take(t, x, s, m)
	for _, err := range []error{
		os.Remove(s.path("gone")), os.RemoveAll(s.path("dir/gone")), os.Chmod(s.path("mode"), 0o755),
		os.Remove(s.path("file to folder")), os.RemoveAll(s.path("was")), os.Mkdir(s.path("empty"), 0o755),
		os.Chtimes(s.path("touched"), time.Now(), time.Now()), os.Symlink("same", s.path("link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.write(t, "other", "changed", "new/deep/file", "file to folder/in it", "was")
	second := take(t, x, s, m)
	changes, err := Compare(t.Context(), m, first.Root, second.Root, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		kind := "modified"
		switch {
		case c.Old == nil:
			kind = "created"
		case c.New == nil:
			kind = "deleted"
		}
		got = append(got, kind+" "+c.Path)
	}
	want := []string{
		"modified changed", "deleted dir/gone", "deleted file to folder", "created file to folder/in it", "deleted gone",
		"created link", "modified mode", "created new/deep/file", "created was", "deleted was/folder",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A damaged or manipulated store may return such a listing.
func TestAMalformedListingIsRefused(t *testing.T) {
	digest := strings.Repeat("0", 64)
	for name, listing := range map[string]string{
		"a path that leads out":   `f 644 0 0 ".." ` + digest,
		"a path of two names":     `f 644 0 0 "a/b" ` + digest,
		"an empty name":           `f 644 0 0 "" ` + digest,
		"no digest":               `f 644 0 0 "a" `,
		"a digest of other bytes": `f 644 0 0 "a" ` + strings.Repeat("z", 64),
		"a special mode":          `f 4755 0 0 "a" ` + digest,
		"a negative size":         `f 644 -1 0 "a" ` + digest,
		"another kind":            `x 644 0 0 "a" ` + digest,
		"no end":                  `l 777 0 0 "a" "b`,
		"a name twice":            `f 644 0 0 "a" ` + digest + "\n" + `f 644 0 0 "a" ` + digest,
	} {
		t.Run(name, func(t *testing.T) {
			if entries, err := decode(strings.NewReader(listing + "\n")); !errors.Is(err, errMalformed) {
				t.Errorf("%v, %v", entries, err)
			}
		})
	}
}

func FuzzListing(f *testing.F) {
	f.Add(encode([]Entry{
		{Name: "a", Mode: 0o644, Size: 3, ModTime: time.Unix(1, 2), digest: Digest(strings.Repeat("0a", 32))},
		{Name: "b\xff\n", Mode: fs.ModeSymlink | 0o777, ModTime: time.Unix(0, 0), Target: "../\x00"},
		{Name: "bb", Mode: 0o600, Size: 300_000, ModTime: time.Unix(1, 2), digest: Digest(strings.Repeat("0b", 32)), pieces: true},
		{Name: "c", Mode: fs.ModeDir | 0o755, ModTime: time.Unix(0, 0), digest: Digest(strings.Repeat("0a", 32))},
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, err := decode(bytes.NewReader(encode(entries)))
		if err != nil || len(again) != len(entries) {
			t.Fatalf("%v: %v", entries, err)
		}
		for i, e := range entries {
			if !validName(e.Name) || again[i].Name != e.Name || again[i].Target != e.Target || again[i].digest != e.digest {
				t.Fatalf("%+v came back as %+v", e, again[i])
			}
		}
	})
}
