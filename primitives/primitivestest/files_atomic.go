package primitivestest

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
)

var errSource = errors.New("the source of the write failed")

// atomicRules returns the rules that a failed write leaves the files unchanged.
func atomicRules() []rule {
	failing := func(n int) io.Reader {
		return io.MultiReader(strings.NewReader(alphabet(n)), failingReader{})
	}
	return []rule{
		{name: "a write whose source fails leaves the old content", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			err := s.WriteFile(t.Context(), s.in("f"), failing(300_000), primitives.WriteOptions{})
			expectError(t, "WriteFile", err, errSource)
			expect(t, "content", s.read(t, "f"), "old")
			expect(t, "files", s.names(t, "."), "f")
		}},
		{name: "a write whose source fails leaves no new file", check: func(t testingT, s *sandbox) {
			err := s.WriteFile(t.Context(), s.in("f"), failing(300_000), primitives.WriteOptions{})
			expectError(t, "WriteFile", err, errSource)
			expect(t, "files", s.names(t, "."), "")
		}},
		{name: "a write whose source fails keeps the mode", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			err := s.WriteFile(t.Context(), s.in("f"), failing(10), primitives.WriteOptions{Mode: 0o700})
			expectError(t, "WriteFile", err, errSource)
			expect(t, "mode", s.lstat(t, "f").Mode, 0o644)
		}},
		{name: "a cancelled write leaves the old content", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			s.expectCancelledWrite(t, "f")
			expect(t, "content", s.read(t, "f"), "old")
			s.expectNames(t, "f")
		}},
		{name: "a cancelled write leaves no new file", check: func(t testingT, s *sandbox) {
			s.expectCancelledWrite(t, "f")
			s.expectNames(t, "")
		}},
		{name: "a write with a cancelled context does nothing", check: func(t testingT, s *sandbox) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := s.WriteFile(ctx, s.in("f"), strings.NewReader("x"), primitives.WriteOptions{})
			expectError(t, "WriteFile", err, context.Canceled)
			s.expectNames(t, "")
		}},
		{name: "nothing of a write is seen before it is done", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- s.WriteFile(t.Context(), s.in("f"), r, primitives.WriteOptions{}) }()
			if _, err := io.WriteString(w, alphabet(300_000)); err != nil {
				t.Fatalf("write: %v", err)
			}
			expect(t, "content in between", s.read(t, "f"), "old")
			expect(t, "listed in between", s.list(t, ".", primitives.ListOptions{Depth: -1}), "f")
			if err := w.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			s.within(t, "the write", func() error { return <-done })
			expect(t, "length in the end", len(s.read(t, "f")), 300_000)
			s.expectNames(t, "f")
		}},
		{name: "an append whose source fails keeps what was there", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			err := s.WriteFile(t.Context(), s.in("f"), failing(100), primitives.WriteOptions{Append: true})
			expectError(t, "WriteFile", err, errSource)
			if got := s.read(t, "f"); !strings.HasPrefix(got, "old") {
				t.Errorf("content is %s", brief(got))
			}
		}},
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errSource }

// expectNames waits until a folder holds the wanted names. On the other side of a connection,
// the leftovers of a cancelled operation may disappear a little later.
func (s *sandbox) expectNames(t testingT, want string) {
	t.Helper()
	eventually(t, s.suite.patience, func() error {
		if got := s.names(t, "."); got != want {
			return errors.New("files are " + got + ", want " + want)
		}
		return nil
	})
}

// expectCancelledWrite cancels a write in its middle.
func (s *sandbox) expectCancelledWrite(t testingT, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.WriteFile(ctx, s.in(name), r, primitives.WriteOptions{}) }()
	if _, err := io.WriteString(w, alphabet(300_000)); err != nil {
		t.Fatalf("write: %v", err)
	}
	cancel()
	// Only the caller can end a reader that blocks.
	if err := w.CloseWithError(context.Canceled); err != nil {
		t.Fatalf("close: %v", err)
	}
	s.within(t, "the write to fail", func() error {
		if err := <-done; !errors.Is(err, context.Canceled) {
			return errors.Join(errors.New("want context.Canceled"), err)
		}
		return nil
	})
}
