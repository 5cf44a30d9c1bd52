package guest_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

func TestAFileIsReadAsItIsWhenItEnds(t *testing.T) {
	b := newByHand(4)
	s, _ := serveBeside(t, b)
	name := filepath.Join(s.Paths().Workspace, "f")
	start := func() io.ReadCloser {
		if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := b.gets.Load()
		r, err := s.Open(t.Context(), "f")
		if err != nil || b.gets.Load() == before {
			t.Fatalf("%v, %d", err, b.gets.Load())
		}
		return r
	}

	r := start()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(" and more")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "content and more" || err != nil {
		t.Errorf("a file that grows: %q, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}

	r = start()
	if err := os.Truncate(name, 3); err != nil { // the way ends early, as the file does
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "con" || err != nil {
		t.Errorf("a file that shrinks: %q, %v", got, err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}

	r = start()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	r = start()
	if err := iotest.TestReader(struct{ io.Reader }{r}, []byte("content")); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestAReadThatBreaksOffGoesOnOverTheStream(t *testing.T) {
	for _, cut := range []bool{false, true} {
		b := newByHand(4)
		s, _ := serveBeside(t, b)
		get := b.Get
		b.Get = func(ctx context.Context, file guest.Located) (io.ReadCloser, error) {
			f, err := get(ctx, file)
			return struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(f, 3), iotest.ErrReader(io.ErrUnexpectedEOF)), f}, err
		}
		if err := s.WriteFile(t.Context(), "f", strings.NewReader("content"), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := s.Open(t.Context(), "f")
		if err != nil {
			t.Fatal(err)
		}
		if cut { // then that has ended, too
			if err := s.cut(); err != nil {
				t.Error(err)
			}
			<-s.Done()
		}
		got, err := io.ReadAll(r)
		if cut && (string(got) != "con" || !errors.Is(err, primitives.ErrUnavailable)) || !cut && (string(got) != "content" || err != nil) {
			t.Errorf("the stream was cut: %v: %q, %v", cut, got, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
