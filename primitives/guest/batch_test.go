package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestBatchReportsEachFile(t *testing.T) {
	c := connectCuttable(t)
	files := []primitives.File{{Path: "missing/a", Content: []byte("x")}, {Path: "599", Content: []byte("written again by a later group")}}
	for i := range 600 { // more than two groups
		if i == 300 {
			files = append(files, primitives.File{Path: "missing/b"})
		}
		files = append(files, primitives.File{Path: fmt.Sprint(i), Content: []byte(strings.Repeat("x", i))})
	}
	files = append(files,
		primitives.File{Path: "missing/big", Content: make([]byte, 3<<20)},
		primitives.File{Path: "big", Content: bytes.Repeat([]byte("y"), 3<<20)}, // larger than a group
		primitives.File{Path: "last"})
	errs, err := c.WriteFiles(t.Context(), files)
	if err != nil || len(errs) != len(files) {
		t.Fatalf("%d errors, %v", len(errs), err)
	}
	for i, f := range files {
		if bad := strings.HasPrefix(f.Path, "missing/"); bad != errors.Is(errs[i], os.ErrNotExist) {
			t.Errorf("%s: %v", f.Path, errs[i])
			continue
		} else if bad || i == 1 {
			continue
		}
		got, err := os.ReadFile(filepath.Join(c.fake.Paths().Workspace, f.Path))
		if err != nil || !bytes.Equal(got, f.Content) {
			t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
}

// sequential is a sandbox that takes the files of a batch as a sequence.
type sequential struct {
	*fake
	take func(ctx context.Context, files iter.Seq[primitives.File]) ([]error, error)
}

func (s sequential) WriteFilesSeq(ctx context.Context, files iter.Seq[primitives.File]) ([]error, error) {
	return s.take(ctx, files)
}

// small returns n small files with different contents.
func small(n int) []primitives.File {
	files := make([]primitives.File, n)
	for i := range files {
		files[i] = primitives.File{Path: fmt.Sprint(i), Content: bytes.Repeat([]byte{byte(i)}, 3000), Mode: fs.FileMode(i % 0o777)}
	}
	return files
}

func TestBatchIsASequence(t *testing.T) {
	var calls, got []primitives.File
	s := sequential{newFake(t), func(_ context.Context, files iter.Seq[primitives.File]) (errs []error, err error) {
		calls = append(calls, primitives.File{})
		for f := range files {
			f.Content = bytes.Clone(f.Content)
			got = append(got, f)
			var err error
			if len(errs)%100 == 7 {
				err = fault("write", f.Path, fs.ErrPermission)
			}
			errs = append(errs, err)
		}
		return errs, nil
	}}
	c := connect(t, s, Config{})
	first, last := small(300), small(600)
	large := primitives.File{Path: "large", Content: bytes.Repeat([]byte("y"), 1<<20)}
	errs, err := c.WriteFiles(t.Context(), slices.Concat(first, []primitives.File{large}, last))
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		n := i
		if i > len(first) {
			n = i - len(first) - 1 // these files are in the second sequence
		}
		if bad := i != len(first) && n%100 == 7; bad != errors.Is(err, fs.ErrPermission) || !bad && err != nil {
			t.Errorf("file %d: %v", i, err)
		}
	}
	if !slices.EqualFunc(got, slices.Concat(first, last), func(a, b primitives.File) bool {
		return a.Path == b.Path && a.Mode == b.Mode && bytes.Equal(a.Content, b.Content)
	}) || len(calls) != 2 {
		t.Errorf("%d files came, in %d calls", len(got), len(calls))
	}
}

func TestBatchThatIsBrokenOffIsNotSentToItsEnd(t *testing.T) {
	for rule, fail := range map[string]error{
		"with an error": &primitives.Error{Op: "write", Err: primitives.ErrUnavailable},
		"without":       nil, // a mistake of the sandbox
	} {
		t.Run(rule, func(t *testing.T) {
			s := sequential{newFake(t), func(_ context.Context, files iter.Seq[primitives.File]) ([]error, error) {
				for range files {
					return []error{nil}, fail
				}
				return nil, errors.New("there were no files")
			}}
			c := connectCuttableTo(t, s.fake, s)
			content := make([]byte, 200<<10)
			files := make([]primitives.File, 500)
			for i := range files {
				files[i] = primitives.File{Path: fmt.Sprint(i), Content: content}
			}
			if _, err := c.WriteFiles(t.Context(), files); !errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("WriteFiles: %v", err)
			}
			if err := errors.Join(c.Close(), within(t, c.served)); err != nil {
				t.Error(err)
			}
			if n := c.sent.Load(); n > 10<<20 {
				t.Errorf("%d bytes were sent", n)
			}
		})
	}
}

func TestBatchThatIsCutOffEnds(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan int, 1)
	s := sequential{newFake(t), func(ctx context.Context, files iter.Seq[primitives.File]) (errs []error, err error) {
		for range files {
			if errs = append(errs, nil); len(errs) == 1 {
				close(begun)
				<-ctx.Done() // the host has disconnected
			}
		}
		ended <- len(errs)
		return errs, ctx.Err()
	}}
	c := connectCuttableTo(t, s.fake, s)
	written := make(chan error, 1)
	go func() {
		_, err := c.WriteFiles(t.Context(), small(5000))
		written <- err
	}()
	within(t, begun)
	c.cut()
	if err := within(t, written); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("WriteFiles: %v", err)
	}
	if n := within(t, ended); n < groupFiles || n >= 5000 {
		t.Errorf("%d files came", n)
	}
	within(t, c.served)
}
