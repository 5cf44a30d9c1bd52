package primitives_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// memory implements the part of Files that the fallbacks use.
type memory struct {
	primitives.Files
	files map[string]string
}

func (m memory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	content, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

func (m memory) WriteFile(_ context.Context, name string, r io.Reader, _ primitives.WriteOptions) error {
	if name == "refused" {
		return fs.ErrPermission
	}
	b, err := io.ReadAll(r)
	m.files[name] = string(b)
	return err
}

func TestReadFileKeepsTheLimit(t *testing.T) {
	m := memory{files: map[string]string{"f": "0123456789", "empty": ""}}
	for _, tt := range []struct {
		name  string
		limit int64
		want  string
		err   error
	}{
		{"f", 10, "0123456789", nil},
		{"f", 0, "0123456789", nil},
		{"f", 9, "012345678", primitives.ErrLimit},
		{"empty", 1, "", nil},
		{"missing", 1, "", fs.ErrNotExist},
	} {
		got, err := primitives.ReadFile(t.Context(), m, tt.name, tt.limit)
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("ReadFile(%s, %d) = %q, %v; want %q, %v", tt.name, tt.limit, got, err, tt.want, tt.err)
		}
	}
}

func TestWriteFilesWritesAllThatCanBeWritten(t *testing.T) {
	m := memory{files: map[string]string{}}
	errs, err := primitives.WriteFiles(t.Context(), m, []primitives.File{
		{Path: "a", Content: []byte("1")}, {Path: "refused"}, {Path: "b", Content: []byte("2")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if errs[0] != nil || !errors.Is(errs[1], fs.ErrPermission) || errs[2] != nil {
		t.Errorf("errors %v", errs)
	}
	if m.files["a"] != "1" || m.files["b"] != "2" {
		t.Errorf("files %v", m.files)
	}
}

func TestWriteFilesUsesTheBackendsOwnWay(t *testing.T) {
	var b batch
	if _, err := primitives.WriteFiles(t.Context(), &b, []primitives.File{{Path: "a", Content: bytes.Repeat([]byte("x"), 3)}}); err != nil {
		t.Fatal(err)
	}
	if b.calls != 1 {
		t.Errorf("the backend's WriteFiles was called %d times", b.calls)
	}
}

type batch struct {
	primitives.Files
	calls int
}

func (b *batch) WriteFiles(_ context.Context, files []primitives.File) ([]error, error) {
	b.calls++
	return make([]error, len(files)), nil
}
