package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

const mib = 1 << 20

// random returns n bytes that cannot be compressed, the same for the same seed.
func random(n int, seed uint64) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data) // it never fails
	return data
}

func (s *sandbox) writeBytes(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(s.path(name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestALargeFileIsStoredInPieces(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	content := random(mib, 1)
	s.writeBytes(t, "large", content)
	x := new(Index)
	take(t, x, s, m)
	whole := x.Claim()
	var added int64
	const states = 200
	for i := range states {
		content[(i*7919)%len(content)]++
		s.writeBytes(t, "large", content)
		st := take(t, x, s, m)
		n := x.Claim()
		added += n
		if st.Bytes != mib || n == 0 {
			t.Fatalf("state %d: %+v, stored %d", i, st, n)
		}
	}
	if whole < mib || added > states*mib/5 {
		t.Errorf("stored %d at first, and %d on average for a byte of a MiB: want a fifth of it at most", whole, added/states)
	}
	other, _ := unpacked(t, m, x.state.Root)
	if got, err := os.ReadFile(other.path("large")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("it comes back as %d other bytes, %v", len(got), err)
	}
}

func TestAHoleIsNoData(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.writeBytes(t, "f", []byte("begin"))
	const size = 100 * mib
	if err := os.Truncate(s.path("f"), size); err != nil {
		t.Fatal(err)
	}
	x := new(Index)
	st, err := x.Take(t.Context(), s, m, Options{Limit: mib})
	if err != nil || st.Bytes != size || x.Claim() > mib {
		t.Fatalf("%+v, %v", st, err)
	}
	other := newSandbox(t)
	err = archive.Pipe(
		func(w io.Writer) error { return Pack(t.Context(), m, st.Root, nil, w) },
		func(r io.Reader) error { return primitives.Unpack(t.Context(), other, ".", r) },
	)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(other.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begin := make([]byte, 7)
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != "begin\x00\x00" {
		t.Errorf("%q, %v", begin, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != size {
		t.Errorf("%v, %v", info, err)
	}
}

func TestTheStateOfAWorkspaceIsBounded(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "a")
	if err := os.Mkdir(s.path("most"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		s.writeBytes(t, fmt.Sprintf("most/%d", i), random(mib, i))
	}
	x := new(Index)
	_, err := x.Take(t.Context(), s, m, Options{Limit: 2 * mib})
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), `the most of it in "most"`) {
		t.Errorf("error %v", err)
	}
	s.packed = nil
	if _, again := x.Take(t.Context(), s, m, Options{Limit: 2 * mib}); !errors.Is(again, primitives.ErrLimit) || len(s.packed) > 0 {
		t.Errorf("the same once more: %v, read %q", again, s.packed)
	}
	m.puts = 0
	_, err = x.Take(t.Context(), s, m, Options{Room: 100_000})
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "has no room") || m.puts > 0 {
		t.Errorf("without room: %v, %d blobs were put", err, m.puts)
	}
	st, err := x.Take(t.Context(), s, m, Options{Limit: 3*mib + 100})
	if err != nil || st.Files != 5 {
		t.Errorf("%+v, %v", st, err)
	}
	st, err = x.Take(t.Context(), s, m, Options{Limit: 100, Skip: func(name string) bool { return name == "most" }})
	if err != nil || st.Files != 2 {
		t.Errorf("without a folder: %+v, %v", st, err)
	}
}

// changing is a sandbox whose file f changes some times while it is packed.
type changing struct {
	*sandbox
	t     *testing.T
	times int
	n     int
}

func (c *changing) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	r, err := c.sandbox.Pack(ctx, opts)
	if err != nil || c.n == c.times {
		return r, err
	}
	c.n++
	var packed bytes.Buffer
	in, out := tar.NewReader(r), tar.NewWriter(&packed)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = out.WriteHeader(h)
		}
		if err == nil {
			_, err = io.Copy(out, in)
		}
		if err == nil && h.Name == "f" {
			err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "x", PAXRecords: map[string]string{primitives.PackChanged: "f"}})
		}
		if err != nil {
			return nil, err
		}
	}
	c.writeBytes(c.t, "f", random(1000+c.n, uint64(c.n)))
	return io.NopCloser(&packed), errors.Join(out.Close(), r.Close())
}

func TestAFileThatChangesMeanwhileIsReadAgain(t *testing.T) {
	for times, steady := range map[int]bool{1: true, rounds - 1: true, rounds: false} {
		s, m := newSandbox(t), newMemory(t)
		s.writeBytes(t, "f", []byte("first"))
		s.writeBytes(t, "g", []byte("another"))
		c := &changing{sandbox: s, t: t, times: times}
		var x Index
		st, err := x.Take(t.Context(), c, m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(st.Unsteady) == 0; got != steady || st.Files != 2 || st.Bytes < 1000 {
			t.Errorf("changed %d times: %+v", times, st)
		}
		if !steady {
			continue
		}
		other, _ := unpacked(t, m, st.Root)
		got, err := os.ReadFile(other.path("f"))
		if want := random(1000+times, uint64(times)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("changed %d times: stored %d bytes, want the last %d, %v", times, len(got), len(want), err)
		}
	}
}

// A tar archive says the size of a file before its content.
func TestAFileThatBecomesShorterMeanwhileIsStored(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	for i := range 5 {
		s.writeBytes(t, fmt.Sprintf("f%d", i), random(mib, uint64(i)))
	}
	var x Index
	st, err := x.Take(t.Context(), &shrinking{s}, m, Options{})
	if err != nil || st.Files != 5 || len(st.Unsteady)+len(st.Unreadable) != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	other, _ := unpacked(t, m, st.Root)
	for i := range 5 {
		want := random(mib, uint64(i))
		if i == 2 {
			want = want[:500_000]
		}
		if got, err := os.ReadFile(other.path(fmt.Sprintf("f%d", i))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("f%d has %d bytes, %v", i, len(got), err)
		}
	}
}

// shrinking is a sandbox whose file f2 becomes shorter after its size was packed.
type shrinking struct{ *sandbox }

func (s *shrinking) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	r, err := s.sandbox.Pack(ctx, opts)
	if err != nil || !slices.Contains(opts.Only, "f2") {
		return r, err
	}
	return &shrinker{ReadCloser: r, then: func() error { return os.Truncate(s.path("f2"), 500_000) }}, nil
}

// shrinker calls then when 2.2 MiB were read.
type shrinker struct {
	io.ReadCloser
	n    int64
	then func() error
}

func (s *shrinker) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p[:min(len(p), 4096)])
	if s.n += int64(n); s.n > 2*mib+200_000 && s.then != nil {
		err = errors.Join(err, s.then())
		s.then = nil
	}
	return n, err
}

func TestFilesThatCannotBeReadAreNamedAndTriedAgain(t *testing.T) {
	s, m := newSandbox(t), newMemory(t)
	s.write(t, "content", "a", "b")
	g := &going{s}
	var x Index
	st, err := x.Take(t.Context(), g, m, Options{})
	if err != nil || st.Files != 2 || len(st.Unreadable) != 0 {
		t.Errorf("a file went meanwhile: %+v, %v", st, err)
	}
	s.write(t, "again", "a")
	if st, err = x.Take(t.Context(), s, m, Options{}); err != nil || st.Files != 3 {
		t.Errorf("then it came back: %+v, %v", st, err)
	}
	st, err = x.Take(t.Context(), &denying{s, "b"}, m, Options{})
	if err != nil || len(st.Unreadable) != 0 {
		t.Errorf("an unchanged file need not be read: %+v, %v", st, err)
	}
	s.write(t, "other", "b")
	st, err = x.Take(t.Context(), &denying{s, "b"}, m, Options{})
	if err != nil || !slices.Equal(st.Unreadable, []string{"b"}) || st.Files != 2 {
		t.Errorf("a file that cannot be read: %+v, %v", st, err)
	}
	st, err = x.Take(t.Context(), s, m, Options{})
	if err != nil || len(st.Unreadable) != 0 || st.Files != 3 {
		t.Errorf("then it can: %+v, %v", st, err)
	}
}

// going is a sandbox whose file a is removed after it was listed.
type going struct{ *sandbox }

func (g *going) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	if err := os.Remove(g.path("a")); err != nil {
		return nil, err
	}
	return g.sandbox.Pack(ctx, opts)
}

// denying is a sandbox that does not pack one file.
type denying struct {
	*sandbox
	name string
}

func (d *denying) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	opts.Only = slices.DeleteFunc(slices.Clone(opts.Only), func(name string) bool { return name == d.name })
	return d.sandbox.Pack(ctx, opts)
}

// What is unpacked into the workspace need not be read back.
func TestWhatIsUnpackedIsKnown(t *testing.T) {
	from, m := newSandbox(t), newMemory(t)
	from.write(t, "content", "a", "dir/b", "dir/c")
	from.writeBytes(t, "large", random(mib, 1))
	first := take(t, new(Index), from, m)
	for what, learn := range map[string]func(*Index, []byte) error{
		"learned": func(x *Index, tar []byte) error {
			return x.Learn(t.Context(), bytes.NewReader(tar), ".", m, archive.Limit{})
		},
		"expected": func(x *Index, _ []byte) error { return x.Expect(t.Context(), m, first.Root, true) },
	} {
		var packed bytes.Buffer
		if err := Pack(t.Context(), m, first.Root, nil, &packed); err != nil {
			t.Fatal(err)
		}
		s := newSandbox(t)
		var x Index
		if err := learn(&x, packed.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := primitives.Unpack(t.Context(), s, ".", &packed); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if err := errors.Join(os.WriteFile(s.path("dir/c"), []byte("changed"), 0o644), os.Chtimes(s.path("dir/b"), now, now)); err != nil {
			t.Fatal(err)
		}
		st := take(t, &x, s, m)
		if !slices.Equal(s.packed, []string{"dir/b", "dir/c"}) {
			t.Errorf("%s: read %q, want what changed since", what, s.packed)
		}
		changes, err := Compare(t.Context(), m, first.Root, st.Root, nil)
		if err != nil || len(changes) != 1 || changes[0].Path != "dir/c" {
			t.Errorf("%s: changes %v, %v", what, changes, err)
		}
	}
}

// Folders that were unpacked as they are listed, and have no files, are in the state, too.
func TestUnpackedFoldersWithoutFilesAreStored(t *testing.T) {
	from, m := newSandbox(t), newMemory(t)
	if err := from.Mkdir(t.Context(), "refs/heads", 0o755); err != nil {
		t.Fatal(err)
	}
	packed, err := from.Pack(t.Context(), primitives.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tar, err := io.ReadAll(packed)
	if err = errors.Join(err, packed.Close()); err != nil {
		t.Fatal(err)
	}
	var x Index
	if err := x.Learn(t.Context(), bytes.NewReader(tar), ".", m, archive.Limit{}); err != nil {
		t.Fatal(err)
	}
	for i, f := range x.files { // as for a sandbox of root whose folders have the times of the archive
		if x.files[i].info, err = from.Files().Stat(t.Context(), f.info.Path); err != nil {
			t.Fatal(err)
		}
	}
	if st := take(t, &x, from, m); Pack(t.Context(), m, st.Root, nil, io.Discard) != nil {
		t.Errorf("the state cannot be read: %v", Pack(t.Context(), m, st.Root, nil, io.Discard))
	}
}

func TestAListOfPiecesThatIsMalformedIsRefused(t *testing.T) {
	d := strings.Repeat("0", 64)
	if pieces, err := decodePieces(strings.NewReader("5 "+d+"\n3 -\n"), 8); err != nil || len(pieces) != 2 {
		t.Errorf("%v, %v", pieces, err)
	}
	for what, list := range map[string]string{
		"another size": "7 " + d + "\n", "too much": "9 " + d + "\n", "a negative size": "-1 " + d + "\n9 -\n", "nothing": "8 \n",
		"no number": "x " + d + "\n", "no digest": "8 abc\n", "no size": "0 " + d + "\n8 -\n", "empty": "",
	} {
		if pieces, err := decodePieces(strings.NewReader(list), 8); !errors.Is(err, errBadPieces) {
			t.Errorf("%s: %v, %v", what, pieces, err)
		}
	}
}
